"""JSON-RPC 2.0 as text: requests put together, answers taken apart. No network, no time.

``params`` and ``result`` are never decoded: they pass as the text in which they came, so that 256-bit integers survive.
What a server sends is trusted in nothing: each answer of a batch is looked at alone, and one that is missing or broken
is the error of one request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import msgspec

from blockx_worker.io.errors import failed
from blockx_worker.model.errors import IoErrorKind
from blockx_worker.model.fields import read_object, shorten
from blockx_worker.ports import IoAnswer

__all__ = ["BadBody", "NotBatch", "RpcCall", "encode_calls", "read_answers", "read_call"]

# Limit exceeded, resource unavailable (both of Ethereum's JSON-RPC), and an HTTP status that some gateways put there.
LIMIT_CODES = frozenset({-32005, -32002, 429})
MAX_SHOWN_DATA = 400

_FIELDS = ("method", "params")


class BadBody(Exception):
    """A body that answers none of the requests; the text says what it is."""


class NotBatch(BadBody):
    """A batch was answered with one object: the server takes no batches, or none of this size."""


@attrs.frozen
class RpcCall:
    """One request: ``method`` and ``params`` as JSON text."""

    method: bytes
    params: bytes

    @property
    def name(self) -> str:
        """The method, for people."""
        return shorten(self.method.decode().strip('"'))


class _Answer(msgspec.Struct, gc=False):
    id: msgspec.Raw = msgspec.Raw(b"")
    result: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


class _Error(msgspec.Struct, gc=False):
    code: int
    message: str = ""
    data: msgspec.Raw = msgspec.Raw(b"")


_decode_any = msgspec.json.Decoder(msgspec.Raw).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_error = msgspec.json.Decoder(_Error).decode


def read_call(name: str, request: bytes) -> RpcCall:
    """Read ``{"method", "params"?}``; FieldError that names the field."""
    fields = read_object(name, request, _FIELDS)
    method = fields.text("method", "the name of a method")
    if not fields.has("params"):
        return RpcCall(msgspec.json.encode(method), b"[]")
    params = bytes(fields.raw("params", "a list or an object"))
    if params[:1] not in (b"[", b"{"):
        raise fields.wrong("params", "a list or an object")
    try:
        params.isascii() or params.decode()
    except UnicodeDecodeError as error:
        raise fields.error("params", f"not valid UTF-8: {error.reason}") from None
    return RpcCall(msgspec.json.encode(method), params)


def encode_calls(calls: Mapping[int, RpcCall]) -> bytes:
    """The body for these calls by id: an object for one, an array for several."""
    texts = [
        b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (number, call.method, call.params)
        for number, call in calls.items()
    ]
    return texts[0] if len(texts) == 1 else b"[%b]" % b",".join(texts)


def read_answers(body: bytes, calls: Mapping[int, RpcCall]) -> dict[int, IoAnswer]:
    """The answer to every call. BadBody when the body answers none of them, NotBatch when it should be an array."""
    found: dict[int, IoAnswer] = {}
    for item in _items(body, several=len(calls) > 1):
        number, answer = _read_item(item, calls)
        if number is not None:
            found[number] = answer
    if not found:
        raise BadBody(f"answered something else than what was asked: {_shown(body)}")
    return {number: found.get(number) or _missing(call) for number, call in calls.items()}


def _items(body: bytes, *, several: bool) -> Sequence[msgspec.Raw]:
    try:
        body.isascii() or body.decode()
        whole = _decode_any(body)
        if bytes(memoryview(whole)[:1]) == b"[":
            return _decode_items(whole)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"answered something that is no JSON ({error}): {_shown(body)}") from None
    if several:
        raise NotBatch(f"answered a batch with {_shown(body)}")
    return [whole]


def _read_item(item: msgspec.Raw, calls: Mapping[int, RpcCall]) -> tuple[int | None, IoAnswer]:
    try:
        answer = _decode_answer(item)
    except msgspec.DecodeError:
        return None, _NOTHING
    number = _number(bytes(answer.id))
    call = calls.get(number) if number is not None else None
    if call is None:
        return None, _NOTHING
    if len(answer.error) and bytes(answer.error) != b"null":
        return number, _error(call, bytes(answer.error))
    if not len(answer.result):
        return number, _missing(call)
    return number, IoAnswer(result=bytes(answer.result))


_NOTHING = IoAnswer()


def _number(text: bytes) -> int | None:
    """The id, also from servers that send it back as a text."""
    digits = text.strip(b'"')
    return int(digits) if digits.isdigit() and len(digits) < 20 else None


def _error(call: RpcCall, text: bytes) -> IoAnswer:
    try:
        error = _decode_error(text)
    except msgspec.DecodeError:
        return failed(IoErrorKind.RPC_ERROR, f"{call.name}: {_shown(text)}")
    data = f" (data {_shown(bytes(error.data), MAX_SHOWN_DATA)})" if len(error.data) else ""
    message = f"{call.name}: error {error.code}: {error.message}{data}"
    return failed(IoErrorKind.RPC_ERROR, message, retryable=error.code in LIMIT_CODES)


def _missing(call: RpcCall) -> IoAnswer:
    message = f"{call.name}: the server's response has no answer to this request"
    return failed(IoErrorKind.RPC_BAD_RESPONSE, message)


def _shown(text: bytes, limit: int = 80) -> str:
    return shorten(text[: limit * 4].decode(errors="replace"), limit) if text else "nothing"
