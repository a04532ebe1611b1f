"""What user functions print, as lines of the worker's log with the ids of their task and call."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from blockx_executor.wire.userlog import parse_log_line
from blockx_worker.telemetry.log import get_logger

__all__ = ["UserLog"]

log = get_logger("blockx.user")

_MAX_RAW_CHARS = 8 * 1024  # as long as the SDK lets a line be


class UserLog:
    """Takes the lines of the executors' stdout and stderr.

    The SDK's own lines carry ids and were rate limited in the executor; anything else was written past it (native
    code, an interpreter's last words) and is limited here, ``raw_lines_per_s`` for each executor.
    """

    def __init__(self, raw_lines_per_s: int, now_s: Callable[[], float]) -> None:
        self._limit = raw_lines_per_s
        self._now_s = now_s
        self._windows: dict[str, _Window] = {}

    def line(self, executor_id: str, stream: str, line: bytes) -> None:
        """Log one line without its newline."""
        parsed = parse_log_line(line)
        if parsed is None:
            self._raw(executor_id, stream, line.decode(errors="replace"))
            return
        self._raw(executor_id, stream, parsed.raw_before)
        log.info(
            "user_output",
            task_id=parsed.task_id,
            call_id=parsed.call_id,
            executor_id=executor_id,
            stream=parsed.stream,
            text=parsed.text,
            **({"user_level": parsed.level} if parsed.level else {}),
        )

    def _raw(self, executor_id: str, stream: str, text: str) -> None:
        if text.strip() and self._admit(executor_id):
            log.info("executor_output", executor_id=executor_id, stream=stream, text=_cut(text))

    def _admit(self, executor_id: str) -> bool:
        second = int(self._now_s())
        window = self._windows.setdefault(executor_id, _Window(second))
        if window.second != second:
            if window.count > self._limit:
                log.warning(
                    "executor_output_dropped", executor_id=executor_id, lines=window.count - self._limit
                )
            window.second, window.count = second, 0
        window.count += 1
        return window.count <= self._limit


@attrs.define
class _Window:
    second: int
    count: int = 0


def _cut(text: str) -> str:
    if len(text) <= _MAX_RAW_CHARS:
        return text
    return f"{text[:_MAX_RAW_CHARS]}… ({len(text) - _MAX_RAW_CHARS} more characters)"
