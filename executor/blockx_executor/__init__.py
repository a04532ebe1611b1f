"""The executor process of BlockX worker; the worker itself imports only `blockx_executor.wire`."""

__version__ = "0.1.0"
