"""New code that is published while tasks run: each task ends on the version that it began with."""

from types import SimpleNamespace

import pytest

from blockx_worker.functions.view import LoadedView
from blockx_worker.orchestrator.code import CodeDesk
from blockx_worker.ports import StepFailed
from tests.executor.driver import ExecutorDriver, running_executor
from tests.functions.helpers import Folder


def package(version: str) -> dict[str, str]:
    """Three files of which two change with the version, and a function that only this version has."""
    return {
        "chain/__init__.py": f"VERSION = {version!r}",
        "chain/_abi.py": f"from . import VERSION\ndef decode(x): return [VERSION, {version!r}, x]",
        "chain/erc20.py": f"from chain._abi import decode\ndef transfer(x): return decode(x)\ndef only_{version}(): ...",
    }


def publish(folder: Folder, version: str) -> None:
    for name, source in package(version).items():
        folder.write(name, source)
    folder.write("single.py", f"def f(x): return [{version!r}, x]")


class Worker:
    """Tasks that hold views, the desk that answers requests for code out of them, and one real executor."""

    def __init__(self, executor: ExecutorDriver) -> None:
        self._executor = executor
        executor.answers_code = False
        self.tasks: dict[str, SimpleNamespace] = {}
        door = SimpleNamespace(dispatcher=SimpleNamespace(digest_bound=lambda *_: True))
        self._desk = CodeDesk(SimpleNamespace(door=door, runtimes=self.tasks))

    def begin(self, task_id: str, view: LoadedView) -> None:
        self.tasks[task_id] = SimpleNamespace(view=view)

    def send(self, task_id: str, function_id: str, x: object) -> str:
        function = self.tasks[task_id].view.resolve(function_id)
        return self._executor.execute(function.digest, function.entry_selector, x, task_id=task_id)

    def values(self, call_ids: list[str]) -> list[object]:
        executor = self._executor
        executor.wait_for(lambda: executor.code_requests or len(executor.others) == len(call_ids))
        while executor.code_requests:
            executor.send(self._desk.answer("exec-1", executor.code_requests.pop()))
            executor.wait_for(lambda: executor.code_requests or len(executor.others) == len(call_ids))
        return [executor.value(call_id) for call_id in call_ids]


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


async def test_old_and_new_tasks_interleave_on_one_executor_each_on_its_version(folder) -> None:
    publish(folder, "one")
    old = await folder.look()
    with running_executor() as executor:
        worker = Worker(executor)
        worker.begin("old", old)
        assert worker.values([worker.send("old", "chain.erc20.transfer", 0)]) == [["one", "one", 0]]
        publish(folder, "two")
        worker.begin("new", await folder.look())
        calls = [
            worker.send(task_id, function_id, i)
            for i in range(20)
            for task_id in ("old", "new")
            for function_id in ("chain.erc20.transfer", "single.f")
        ]
        values = worker.values(calls)
    names = {"old": "one", "new": "two"}
    assert values == [
        value
        for i in range(20)
        for task_id in ("old", "new")
        for value in ([names[task_id], names[task_id], i], [names[task_id], i])
    ]


async def test_the_code_of_an_old_epoch_can_be_had_as_long_as_a_task_needs_it(folder) -> None:
    """An executor that starts late asks for code that the folder has no longer."""
    publish(folder, "one")
    old = await folder.look()
    publish(folder, "two")
    await folder.look()
    (folder.path / "single.py").unlink()
    new = await folder.look()
    with pytest.raises(StepFailed, match="is not among the 2 functions of epoch 3"):
        new.resolve("single.f")
    with running_executor() as executor:
        worker = Worker(executor)
        worker.begin("old", old)
        worker.begin("new", new)
        calls = [worker.send("old", "single.f", 1), worker.send("new", "chain.erc20.transfer", 2)]
        assert worker.values(calls) == [["one", 1], ["two", "two", 2]]


async def test_a_broken_publication_changes_nothing_for_anybody(folder) -> None:
    publish(folder, "one")
    old = await folder.look()
    publish(folder, "two")
    folder.write("chain/_abi.py", "def decode(x: return")
    half = await folder.look()
    assert half.epoch == old.epoch + 1  # single.py is a unit of its own
    assert half.resolve("chain.erc20.only_one").digest == old.resolve("chain.erc20.transfer").digest
    assert half.resolve("single.f").digest != old.resolve("single.f").digest
