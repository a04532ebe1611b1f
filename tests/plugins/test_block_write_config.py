"""The configuration of the block writer, checked before any call runs."""

import json

import pytest

from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.plugins.targets import Targets
from blockx_worker.plugins.write_config import WriteMode, read_write_config
from blockx_worker.ports import StepFailed
from tests.plugins.helpers import config, plugin

TARGETS = Targets({"main": "sqlite:////data/main.db"}, allow_urls=False)


@pytest.mark.parametrize(
    ("blocks", "mode", "expected"),
    [
        (None, None, WriteMode.APPEND),
        ((1, 2), None, WriteMode.REPLACE_BLOCK),
        ((1, 2), "append", WriteMode.APPEND),
        ((1, 2), "replace_block", WriteMode.REPLACE_BLOCK),
        (None, "append", WriteMode.APPEND),
    ],
)
def test_the_mode_follows_from_the_kind_of_task_unless_given(blocks, mode, expected) -> None:
    assert read_write_config(config(mode=mode), blocks, TARGETS).mode is expected


@pytest.mark.parametrize(
    ("fields", "blocks", "message"),
    [
        ({"target": ""}, None, '.target: expected the name of a target or a database URL, got ""'),
        ({"target": "x"}, None, '.target: no target is called "x"; targets of this worker: main'),
        ({"table": None}, None, ".table: is missing: expected the name of a table"),
        ({"table": 5}, None, ".table: expected the name of a table, got 5"),
        ({"table": "a\0b"}, None, ".table: a name cannot hold the character NUL"),
        ({"table": "x" * 201}, None, "is longer than 200 characters"),
        (
            {"table": "SQLite_x"},
            None,
            '.table: "SQLite_x" begins with a reserved prefix (sqlite_ or blockx_)',
        ),
        ({"table": "blockx_write_ledger"}, None, "begins with a reserved prefix"),
        ({"mode": "replace"}, (1, 1), '.mode: expected "append" or "replace_block", got "replace"'),
        ({"mode": ["append"]}, (1, 1), '.mode: expected "append" or "replace_block", got ["append"]'),
        (
            {"mode": "replace_block"},
            None,
            ".mode: replace_block is for tasks over block tables; a call list can",
        ),
        ({"columns": []}, None, ".columns: expected a list of at least one column name, got []"),
        ({"columns": ["a", "a"]}, None, '.columns[1]: "a" is named twice (also columns[0])'),
        ({"columns": ["a", ""]}, None, '.columns[1]: expected a non-empty string, got ""'),
        ({"columns": ["a\0"]}, None, ".columns[0]: a name cannot hold the character NUL"),
        ({"columns": ["a"]}, (1, 1), '.columns: replace_block needs the column "block_number" among them'),
        ({"tabel": "t"}, None, ".tabel: unknown field: did you mean table?"),
    ],
)
def test_a_bad_configuration_names_the_field(tmp_path, fields, blocks, message) -> None:
    with pytest.raises(StepFailed) as caught:
        plugin(tmp_path / "out.db").check(config(**fields), blocks)
    assert caught.value.code is TaskFailureCode.PLUGIN_FAILED
    assert message in caught.value.message
    assert caught.value.message.startswith("resultHandler.")


def test_a_folder_that_is_not_there_is_found_before_any_call_runs(tmp_path) -> None:
    with pytest.raises(
        StepFailed, match=r"the folder .*/none does not exist; create it or correct the target"
    ):
        plugin(tmp_path / "none" / "out.db").check(config(), None)
    with pytest.raises(StepFailed, match="is a folder; name a file in it"):
        plugin(tmp_path).check(config(), None)


def test_a_good_configuration_passes_without_touching_the_file(tmp_path) -> None:
    plugin(tmp_path / "out.db").check(config(columns=["a"]), None)
    assert list(tmp_path.iterdir()) == []
    assert json.loads(config())["target"] == "main"
