"""The example extension in a real worker: its back end, its builder and its writer in one task."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.conftest import StartWorker
from tests.extensions.conftest import site
from tests.support.official import OfficialClient, state_name, typed
from tests.support.worker_process import WorkerProcess

__all__ = ["site"]

CALLS = 20_000
CONFIG = """
[extensions.example]
prices = "{folder}/prices.csv"
folder = "{folder}"
"""
FUNCTIONS = """
from blockx_executor import sdk

def worth(i):
    day = f"2024-05-{1 + i % 2:02}"
    return [i, sdk.io("prices", "usd", symbol="ETH", day=day)]

def unknown(i):
    try:
        return sdk.io("prices", "usd", symbol="DOGE", day="2024-05-01")
    except sdk.IoFailed as error:
        return [error.kind, error.message]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    (folder / "prices.csv").write_text("symbol,day,usd\nETH,2024-05-01,2969.78\nETH,2024-05-02,2988.17\n")
    return folder


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, site: Path, folder: Path) -> WorkerProcess:
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    return start_worker({"f": FUNCTIONS}, config=CONFIG.format(folder=folder), env={"PYTHONPATH": path})


def test_builder_back_end_and_writer_of_an_extension_work_together(
    client: OfficialClient, folder: Path
) -> None:
    """A stream of numbers, a price for each, a file of all."""
    client.SubmitTask(
        task_id="example",
        function_call_config=typed(
            "NumbersCallConfig", {"functionId": "f.worth", "from": 0, "to": CALLS - 1}
        ),
        result_handler=typed("FileHandler", {"file": "worth.jsonl"}),
    )
    result = client.wait("example")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert json.loads(result.plugin_results) == {"outputs": CALLS}
    lines = (folder / "worth.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        [i, "2988.17" if i % 2 else "2969.78"] for i in range(CALLS)
    ]


def test_errors_of_an_extension_are_like_those_of_the_worker(client: OfficialClient) -> None:
    client.submit_calls("unknown", "f.unknown", [[1]])
    assert state_name(client.wait("unknown").state) == "SUCCEEDED"
    assert client.outputs("unknown") == [["PRICE_NOT_FOUND", "no price of DOGE on 2024-05-01"]]
    client.SubmitTask(
        task_id="backwards",
        function_call_config=typed("NumbersCallConfig", {"functionId": "f.worth", "from": 5, "to": 1}),
    )
    failure = client.wait("backwards").failure
    assert failure.code == "BUILDER_FAILED"
    assert "functionCallConfig.to: expected an integer ≥ 5, got 1" in failure.message
