"""The real threads: what work raises comes out as it is, and a cancelled wait interrupts and joins."""

import threading

import pytest
import trio

from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.ports import StepFailed
from blockx_worker.surroundings import WorkerThreads


async def test_the_value_of_the_work_is_returned():
    threads = WorkerThreads()
    assert await threads.run(int, "5") == 5
    assert await threads.run(int, "5", interrupt=lambda: None) == 5


@pytest.mark.parametrize("interrupt", [None, lambda: None])
async def test_what_the_work_raises_is_not_wrapped_in_a_group(interrupt):
    """Writers and builders say what is wrong by raising; whoever catches that looks for the very type."""

    def work():
        raise StepFailed(TaskFailureCode.PLUGIN_FAILED, "bad row")

    with pytest.raises(StepFailed, match="bad row"):
        await WorkerThreads().run(work, interrupt=interrupt)


@pytest.mark.parametrize("error", [None, ValueError("stopped")])
async def test_a_cancelled_wait_interrupts_the_work_joins_it_and_stays_cancelled(error):
    """Whatever the interrupted work does, returning or raising, the cancellation goes on."""
    begun, stop, over = trio.Event(), threading.Event(), threading.Event()
    threads = WorkerThreads()

    def work():
        threads.call_back(begun.set)
        stop.wait(10)
        over.set()
        if error is not None:
            raise error

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: threads.run(work, interrupt=stop.set))
            await begun.wait()
            scope.cancel()
    assert scope.cancelled_caught
    assert over.is_set()


async def test_the_interrupt_is_not_called_when_the_work_ends_by_itself():
    called = []
    await WorkerThreads().run(int, interrupt=lambda: called.append(1))
    with pytest.raises(ValueError, match="x"):
        await WorkerThreads().run(int, "x", interrupt=lambda: called.append(1))
    assert called == []
