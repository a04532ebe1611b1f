"""`CallListCallConfig {"functionId", "argsList": [[…], …]}`: one call for each list of arguments, in order.

The arguments are never decoded here: each element stays a view into the text of the configuration. Decoding is one C
call that holds the interpreter lock, in whatever thread it runs (measured: 80 ns an element), so it runs where it is.
What is checked of each element, that it is an array, is one pass of C iterators a slice, with a checkpoint between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

import msgspec
import trio

from blockx_worker.builders.config import config_errors, read_config
from blockx_worker.dispatch.source import ListSource
from blockx_worker.model.fields import FieldError, Fields, shorten
from blockx_worker.ports import BuilderContext, BuildResult

__all__ = ["CallListBuilder"]

FIELDS = ("functionId", "argsList")
EXPECTED_ARGS = "a list of argument lists"
SLICE_ELEMENTS = 16_384

_first_byte = itemgetter(0)
_ARRAY = {ord("[")}


class CallListBuilder:
    """Builds the calls of a list."""

    type = "CallListCallConfig"

    async def build(self, context: BuilderContext, config: bytes) -> BuildResult:
        """One call per element of ``argsList``; an empty list is a task without calls."""
        fields = read_config(config, FIELDS)
        with config_errors():
            function_id = fields.text("functionId", "the id of a function")
            _check_text(fields, config)
            args_list = fields.raw_list("argsList", EXPECTED_ARGS)
            function = context.view.resolve(function_id)
            await _check_arrays(fields, args_list)
        return BuildResult(
            source=ListSource(
                function,
                args_list,
                batch_max_rows=context.batch_max_rows,
                batch_max_args_bytes=context.batch_max_args_bytes,
            )
        )


def _check_text(fields: Fields, config: bytes) -> None:
    """What is passed on undecoded has to be UTF-8 already."""
    try:
        config.isascii() or config.decode()
    except UnicodeDecodeError as error:
        raise FieldError(f"{fields.path}: not valid UTF-8 at byte {error.start}") from None


async def _check_arrays(fields: Fields, args_list: Sequence[msgspec.Raw]) -> None:
    for start in range(0, len(args_list), SLICE_ELEMENTS):
        part = args_list[start : start + SLICE_ELEMENTS]
        texts: Iterable[memoryview] = map(memoryview, part)
        if set(map(_first_byte, texts)) - _ARRAY:
            index, element = _first_other(part)
            expected = "a list of arguments such as [1] (write [[…]] for one argument that is a list)"
            shown = shorten(bytes(element).decode())
            raise fields.error(f"argsList[{start + index}]", f"expected {expected}, got {shown}")
        await trio.lowlevel.checkpoint()


def _first_other(part: Sequence[msgspec.Raw]) -> tuple[int, msgspec.Raw]:
    return next((i, raw) for i, raw in enumerate(part) if bytes(memoryview(raw)[:1]) != b"[")
