"""Code that is published while tasks run, packages of several files, and code that nobody has audited."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, state_name
from tests.support.worker_process import WorkerProcess, eventually

CONFIG = """
tick_ms = 50
functions_poll_ms = 20
[dispatcher]
heartbeat_interval_ms = 100
"""


_numbers = count()


def versioned(version: int) -> dict[str, str]:
    """A module, and a package whose files need each other; ``only_N`` exists in one version."""
    return {
        "single": f"""
import dataclasses, os, pickle, time
from blockx_executor import sdk

@dataclasses.dataclass
class Tag:
    version: int

_calls = []

def tagged(i):
    sdk.sleep(0.02)
    _calls.append(i)
    tag = pickle.loads(pickle.dumps(Tag({version})))
    assert type(tag) is Tag
    return [tag.version, os.getpid(), time.monotonic(), sdk.call("chain.erc20.transfer", i), sdk.call(only_{version}, i)]

def only_{version}(i):
    return {version}
""",
        "chain/__init__": f"from chain.config import VERSION\nfrom .erc20 import transfer\nassert VERSION == {version}\n",
        "chain/config": f"VERSION = {version}\n",
        "chain/_abi": "from . import config\n\ndef decode(i):\n    return [config.VERSION, i]\n",
        "chain/erc20": "from chain._abi import decode\n\ndef transfer(i):\n    return decode(i)\n",
        "chain/swaps/v2": """
from ..erc20 import transfer
import chain.swaps.helper as helper

def swap(i):
    return [transfer(i), helper.fee(i)]
""",
        "chain/swaps/helper": f"def fee(i):\n    return {version} * i\n",
    }


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerProcess:
    files = versioned(1) | {"gone": "def f(i):\n    return -i\n", "stays": CALLS_GONE}
    return start_worker(files, config=CONFIG)


CALLS_GONE = """
from blockx_executor import sdk

def f(i):
    sdk.sleep(0.3)
    return sdk.call("gone.f", i)
"""


def test_a_package_of_several_files_serves_from_all_of_them(client: OfficialClient) -> None:
    """Absolute and relative imports, upwards and downwards."""
    client.submit_calls("swap", "chain.swaps.v2.swap", [[i] for i in range(50)])
    result = client.wait("swap")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert client.outputs("swap") == [[[1, i], i] for i in range(50)]


def test_tasks_end_on_the_version_that_they_began_with(worker: WorkerProcess, client: OfficialClient) -> None:
    """Old and new calls, and what they call, run side by side in the same processes."""
    client.submit_calls("old", "single.tagged", [[i] for i in range(8_000)])
    publish(worker, client, 2)
    client.submit_calls("new", "single.tagged", [[i] for i in range(2_000)])
    for task_id, version, calls in (("old", 1, 8_000), ("new", 2, 2_000)):
        result = client.wait(task_id)
        assert state_name(result.state) == "SUCCEEDED", result.failure
        outputs = client.outputs(task_id)
        assert [[v, called, own] for v, _, _, called, own in outputs] == [
            [version, [version, i], version] for i in range(calls)
        ]
    old, new = client.outputs("old"), client.outputs("new")
    assert {pid for _, pid, *_ in old} == {pid for _, pid, *_ in new} == set(worker.executor_pids())
    first_new = min(at for _, _, at, *_ in new)
    assert max(at for _, _, at, *_ in old) > first_new, "the old task was over before the new one began"
    client.submit_calls("removed", "single.only_1", [[1]])
    assert client.wait("removed").failure.code == "FUNCTION_NOT_FOUND"


def test_code_that_was_removed_is_there_for_the_tasks_that_have_it(
    worker: WorkerProcess, client: OfficialClient
) -> None:
    """Also what no executor has loaded yet."""
    client.submit_calls("has-it", "stays.f", [[i] for i in range(10)])
    epoch = client.GetWorkerStatus().status.function_epoch
    (worker.functions_dir / "gone.py").unlink()
    eventually(lambda: client.GetWorkerStatus().status.function_epoch > epoch, what="it is noticed")
    client.submit_calls("has-it-not", "gone.f", [[1]])
    assert client.wait("has-it-not").failure.code == "FUNCTION_NOT_FOUND"
    result = client.wait("has-it")
    assert state_name(result.state) == "SUCCEEDED", result.failure
    assert client.outputs("has-it") == [-i for i in range(10)]


def test_a_broken_package_leaves_its_last_good_version(worker: WorkerProcess, client: OfficialClient) -> None:
    """One broken file keeps the whole package; the others follow once it is mended."""
    publish(worker, client, 3)
    worker.publish({"chain/_abi": "def decode(i:\n", "chain/config": "VERSION = 4\n"})
    eventually(lambda: worker.log_events("function_problem", file="chain/_abi.py"), what="it is reported")
    client.submit_calls("last-good", "chain.erc20.transfer", [[1]])
    assert client.wait("last-good").failure.code == ""
    assert client.outputs("last-good") == [[3, 1]]
    publish(worker, client, 4)
    client.submit_calls("mended", "chain.erc20.transfer", [[1]])
    client.wait("mended")
    assert client.outputs("mended") == [[4, 1]]


def test_many_versions_one_after_the_other(worker: WorkerProcess, client: OfficialClient) -> None:
    """Each of twenty tasks gets the version that was the newest when it came."""
    expected = {}
    for version in range(10, 30):
        publish(worker, client, version, "single")
        expected[f"v{version}"] = version
        client.submit_calls(f"v{version}", "single.tagged", [[i] for i in range(20)])
    for task_id, version in expected.items():
        result = client.wait(task_id)
        assert state_name(result.state) == "SUCCEEDED", result.failure
        assert {(v, own) for v, _, _, _, own in client.outputs(task_id)} == {(version, version)}


# --- audited code ---------------------------------------------------------------------------------------------

AUDITED = {
    "good": """
from blockx_executor import sdk

def f(i):
    return i + 1

def asks(i):
    try:
        return sdk.call("bad.f", i)
    except sdk.SubcallFailed as error:
        return [error.kind, error.message]
""",
    "bad": "def f(i):\n    return -i\n",
    "chain/__init__": "from . import helper\n\ndef total(i):\n    return helper.double(i)\n",
    "chain/helper": "def double(i):\n    return 2 * i\n",
}


@pytest.fixture(scope="module")
def audited(
    start_worker: StartWorker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[WorkerProcess, OfficialClient, Path]]:
    """A worker that runs what is on its list: everything but ``bad``."""
    allowed = tmp_path_factory.mktemp("audit") / "allowed.txt"
    allowed.write_text("# nothing yet\n")
    worker = start_worker(AUDITED, config=f'functions_allow_list = "{allowed}"\n{CONFIG}', executors=1)
    with OfficialClient(worker.address) as client:
        allow(allowed, worker, but="bad")
        client.submit_calls("warm", "good.f", [[1]])
        yield worker, client, allowed


def test_only_audited_code_runs(audited: tuple[WorkerProcess, OfficialClient, Path]) -> None:
    """What is not on the list can be called by no task and by no call; a change counts for new tasks."""
    worker, client, allowed = audited

    def runs(function: str) -> bool:
        task_id = f"runs-{next(_numbers)}"
        client.submit_calls(task_id, function, [[5]])
        result = client.wait(task_id)
        if state_name(result.state) == "SUCCEEDED":
            return True
        assert result.failure.code == "FUNCTION_NOT_AUDITED"
        assert function in result.failure.message
        return False

    eventually(lambda: runs("good.f"), what="the list is read")
    assert runs("chain.total")
    assert not runs("bad.f")
    client.submit_calls("asks", "good.asks", [[5]])
    assert state_name(client.wait("asks").state) == "SUCCEEDED"
    [[kind, message]] = client.outputs("asks")
    assert kind == "FUNCTION_NOT_AUDITED"
    assert "bad.f" in message
    worker.publish({"chain/helper": "def double(i):\n    return 3 * i\n"})
    eventually(lambda: not runs("chain.total"), what="the changed package is not audited any more")
    allow(allowed, worker, but="good")
    eventually(lambda: runs("bad.f"), what="the list is read again")
    assert runs("chain.total")
    assert not runs("good.f")


def allow(path: Path, worker: WorkerProcess, *, but: str) -> None:
    """Put on the list what `blockx functions list --digests` prints, except a module."""
    command = [sys.executable, "-c", "from blockx_worker.cli import main; main()", "functions", "list"]
    done = subprocess.run(
        [*command, "--digests", str(worker.functions_dir)], capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if f"{but}.py" not in line]
    assert len(lines) < len(done.stdout.splitlines()), done.stdout
    path.write_text("\n".join(lines) + "\n")


def publish(worker: WorkerProcess, client: OfficialClient, version: int, *units: str) -> None:
    """Write the files of a version (of the units named, else all), and wait until new tasks get all of them."""
    files = versioned(version)
    units = units or ("single", "chain")
    worker.publish({name: text for name, text in files.items() if name.partition("/")[0] in units})
    probes = {"single": f"single.only_{version}", "chain": "chain.swaps.helper.fee"}

    def serves(function: str) -> bool:
        task_id = f"probe-{next(_numbers)}"
        client.submit_calls(task_id, function, [[1]], wait_ms=5000)
        return client.outputs(task_id) == [version]

    for unit in units:
        eventually(partial(serves, probes[unit]), what=f"version {version} of {unit} serves")
