"""The log: structlog for our own lines, with the standard library's loggers routed into the same place.

One line is one event with fields (`task_id`, `call_id`, `executor_id`, …). On a terminal lines are coloured text,
elsewhere JSON. Everything goes to stderr: stdout belongs to data.

Trap: secrets. A URL with a password may come in any field, in a traceback or in a library's message, so masking is the
last step before rendering and sees every text, also inside lists and mappings.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from blockx_worker.config import redact_url
from blockx_worker.config.redact import MASK

__all__ = ["configure_logging", "get_logger", "mask_secrets"]

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:password|passwd|pwd|secret|token|authorization|credential|api_?key)s?$", re.IGNORECASE
)
_CHATTY = ("h2", "hpack", "grpclib", "trio-asyncio", "asyncio", "httpx", "httpcore")


def configure_logging(
    log_format: Literal["auto", "console", "json"] = "auto", level: str = "info", stream: TextIO | None = None
) -> None:
    """Set the whole process up to log to ``stream`` (stderr) from ``level`` on; a second call replaces the first."""
    out = sys.stderr if stream is None else stream
    console = out.isatty() if log_format == "auto" else log_format == "console"
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    _route_standard_logging(out, number, _formatter(shared, console=console, colors=console and out.isatty()))


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger that names its module; cheap, and usable before logging is configured."""
    return cast("FilteringBoundLogger", structlog.get_logger(name))


def mask_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Mask passwords in URLs everywhere, and every value whose name says that it is a secret."""
    return {name: MASK if _SECRET_NAME.search(name) else _masked(value) for name, value in event.items()}


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        return redact_url(value)
    if isinstance(value, Mapping):
        return {
            k: MASK if isinstance(k, str) and _SECRET_NAME.search(k) else _masked(v) for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked(item) for item in value]
    return value if isinstance(value, int | float | bool | None) else redact_url(str(value))


def _formatter(shared: list[Processor], *, console: bool, colors: bool) -> logging.Formatter:
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
        if console
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            mask_secrets,
            renderer,
        ],
    )


def _route_standard_logging(out: TextIO, level: int, formatter: logging.Formatter) -> None:
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(capture=True)
