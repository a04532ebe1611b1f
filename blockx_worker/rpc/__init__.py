"""gRPC: the server, its handlers, and the conversion between protobuf messages and the model."""
