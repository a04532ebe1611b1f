"""`BlockWriteHandler {"target", "table", "mode"?, "columns"?}` as it was read and checked.

In PostgreSQL ``table`` may be ``SCHEMA.TABLE``; without a schema the search path of the login decides. In SQLite a dot is part
of the name.
"""

from __future__ import annotations

from enum import StrEnum

import attrs

from blockx_worker.model.fields import FieldError, Fields, shorten
from blockx_worker.plugins.config import config_errors, read_config
from blockx_worker.plugins.rows import BLOCK_COLUMN
from blockx_worker.plugins.targets import PostgresTarget, Target, Targets

__all__ = ["WriteConfig", "WriteMode", "read_write_config"]

FIELDS = ("target", "table", "mode", "columns")
RESERVED_PREFIXES = ("sqlite_", "blockx_")
MAX_NAME_CHARS = 200
MAX_POSTGRES_NAME_BYTES = 63  # longer ones would be cut off without a word


class WriteMode(StrEnum):
    """APPEND adds rows, once per task id; REPLACE_BLOCK makes the task's rows the only ones of its blocks."""

    APPEND = "append"
    REPLACE_BLOCK = "replace_block"


@attrs.frozen(kw_only=True)
class WriteConfig:
    """Where and how to write. ``columns``: only these columns of each row; None = all.

    ``schema``: of a PostgreSQL table, None = by the search path.
    """

    target: Target
    schema: str | None
    table: str
    mode: WriteMode
    columns: tuple[str, ...] | None


def read_write_config(config: bytes, blocks: tuple[int, int] | None, targets: Targets) -> WriteConfig:
    """Read and check; StepFailed names the field. ``blocks`` None: the task is a call list."""
    fields = read_config(config, FIELDS)
    with config_errors():
        mode = _mode(fields, blocks)
        target = targets.resolve(fields.text("target", "the name of a target or a database URL"))
        schema, table = _table(fields, target)
        columns = _columns(fields, mode, target)
        return WriteConfig(target=target, schema=schema, table=table, mode=mode, columns=columns)


def _mode(fields: Fields, blocks: tuple[int, int] | None) -> WriteMode:
    default = WriteMode.APPEND if blocks is None else WriteMode.REPLACE_BLOCK
    mode = WriteMode(fields.choice("mode", list(WriteMode), default))
    if mode is WriteMode.REPLACE_BLOCK and blocks is None:
        raise fields.error(
            "mode", "replace_block is for tasks over block tables; a call list can only append"
        )
    return mode


def _table(fields: Fields, target: Target) -> tuple[str | None, str]:
    schema: str | None = None
    table = given = fields.text("table", "the name of a table")
    if isinstance(target, PostgresTarget) and "." in given:
        schema, _, table = given.partition(".")
        if not schema or not table or "." in table:
            raise fields.wrong("table", "TABLE or SCHEMA.TABLE")
        _check_name(fields, "table", schema, target)
    _check_name(fields, "table", table, target)
    if table.lower().startswith(RESERVED_PREFIXES):
        raise fields.error(
            "table", f'"{table}" begins with a reserved prefix ({" or ".join(RESERVED_PREFIXES)})'
        )
    return schema, table


def _columns(fields: Fields, mode: WriteMode, target: Target) -> tuple[str, ...] | None:
    if not fields.has("columns"):
        return None
    columns = fields.names("columns", "a list of at least one column name")
    for index, name in enumerate(columns):
        _check_name(fields, f"columns[{index}]", name, target)
    if mode is WriteMode.REPLACE_BLOCK and BLOCK_COLUMN not in columns:
        raise fields.error("columns", f'replace_block needs the column "{BLOCK_COLUMN}" among them')
    return tuple(columns)


def _check_name(fields: Fields, key: str, name: str, target: Target) -> None:
    error: FieldError | None = None
    if "\0" in name:
        error = fields.error(key, "a name cannot hold the character NUL")
    elif len(name) > MAX_NAME_CHARS:
        error = fields.error(key, f'"{shorten(name)}" is longer than {MAX_NAME_CHARS} characters')
    elif isinstance(target, PostgresTarget) and len(name.encode()) > MAX_POSTGRES_NAME_BYTES:
        error = fields.error(
            key, f'"{shorten(name)}" is longer than the {MAX_POSTGRES_NAME_BYTES} bytes that PostgreSQL keeps'
        )
    if error is not None:
        raise error
