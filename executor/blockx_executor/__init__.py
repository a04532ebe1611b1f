"""The executor process of BlockX worker; the worker itself imports only `blockx_executor.wire`."""

from blockx_executor.wire.version import VERSION as __version__  # noqa: N811 - the name that tools look for

__all__ = ["__version__"]
