"""Who may talk to the worker: certificates and tokens."""
