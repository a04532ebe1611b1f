"""What the worker tells about itself while it runs; so far its log."""

from blockx_worker.telemetry.log import configure_logging, get_logger

__all__ = ["configure_logging", "get_logger"]
