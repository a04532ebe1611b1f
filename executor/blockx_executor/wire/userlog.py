"""Lines of user output on an executor's standard output.

The executor writes each line of ``print``, ``sys.stderr`` and ``logging`` as one record on its real standard output:
the byte 0x1E (record separator, as in RFC 7464), a JSON object, a line feed::

    <0x1E>{"taskId":"t-1","callId":"t-1/c0","stream":"stdout","text":"hello"}<LF>

Native code writes to the same descriptor without asking, so a line that is not such a record is raw output of the
process, and raw output without a line feed may stand before a record on the same line.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["RECORD_SEPARATOR", "UserLogLine", "encode_log_line", "parse_log_line"]

RECORD_SEPARATOR: Final = b"\x1e"


class UserLogLine(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """One line of user output.

    ``stream`` is ``stdout``, ``stderr``, ``logging`` (then ``level`` is set) or ``executor`` (a remark of the executor
    about the output itself). The ids are None for output outside any call, such as that of a user's thread.
    ``raw_before`` is raw output that stood before the record on its line.
    """

    stream: str
    text: str
    task_id: str | None = None
    call_id: str | None = None
    level: str | None = None
    raw_before: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(UserLogLine).decode


def encode_log_line(line: UserLogLine) -> bytes:
    """The record of ``line``, line feed included. Text that UTF-8 cannot hold is written with escapes."""
    try:
        body = _encode(line)
    except UnicodeEncodeError:
        text = line.text.encode("utf-8", "backslashreplace").decode()
        body = _encode(msgspec.structs.replace(line, text=text))
    return b"".join((RECORD_SEPARATOR, body, b"\n"))


def parse_log_line(line: bytes) -> UserLogLine | None:
    """The record that ``line`` (with or without its line feed) ends with, or None when it is raw output."""
    before, separator, body = line.rpartition(RECORD_SEPARATOR)
    if not separator:
        return None
    try:
        parsed = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not before:
        return parsed
    return msgspec.structs.replace(parsed, raw_before=before.decode("utf-8", "replace"))
