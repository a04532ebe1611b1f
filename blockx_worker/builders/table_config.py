"""The configuration of calls over block tables."""

from __future__ import annotations

import attrs

from blockx_worker.builders.config import config_errors, read_config
from blockx_worker.model.fields import Fields, read_object

__all__ = ["BlockTableConfig", "read_table_config"]

FIELDS = ("functionId", "block", "triggerSources", "rowsPerCall")
EXPECTED_BLOCK = 'a block number or {"from": N, "to": M}'


@attrs.frozen(kw_only=True)
class BlockTableConfig:
    """Which function, over which tables (``sources``) of the blocks ``first`` to ``last``, one row a call or several."""

    function_id: str
    first: int
    last: int
    sources: list[str]
    rows_per_call: int | None


def read_table_config(config: bytes, *, max_blocks: int) -> BlockTableConfig:
    """Decode the JSON text; StepFailed names the bad field."""
    fields = read_config(config, FIELDS)
    with config_errors():
        first, last = _read_block(fields, max_blocks)
        return BlockTableConfig(
            function_id=fields.text("functionId", "the id of a function"),
            first=first,
            last=last,
            sources=fields.names("triggerSources", "a list of at least one table name"),
            rows_per_call=fields.integer("rowsPerCall", 1) if fields.has("rowsPerCall") else None,
        )


def _read_block(fields: Fields, max_blocks: int) -> tuple[int, int]:
    raw = fields.raw("block", EXPECTED_BLOCK)
    if bytes(memoryview(raw)[:1]) != b"{":
        if not bytes(raw).removeprefix(b"-").isdigit():
            raise fields.wrong("block", EXPECTED_BLOCK)
        number = fields.integer("block", 0)
        return number, number
    span = read_object(f"{fields.path}.block", raw, ("from", "to"))
    first, last = span.integer("from", 0), span.integer("to", 0)
    if first > last:
        raise span.error("to", f"expected at least {first} (block.from), got {last}")
    if last - first >= max_blocks:
        count = last - first + 1
        raise span.error("to", f"{count} blocks are more than the {max_blocks} that one task may cover")
    return first, last
