"""BlockX worker: tasks over gRPC, calls on Python executor processes."""

__version__ = "0.1.0"
