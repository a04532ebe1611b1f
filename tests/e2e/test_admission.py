"""Slots, leases and task ids, as the official client sees them: each answer has a code and says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.e2e.conftest import StartWorker
from tests.support.official import OfficialClient, refusal, state_name
from tests.support.worker_process import WorkerProcess, eventually

SLOTS = 3
TICK_MS = 2000

FUNCTIONS = '''
import os
import time


def add(a, b):
    return a + b


def wait_for(path):
    """Returns once the file is there."""
    while not os.path.exists(path):
        time.sleep(0.005)
    return "released"
'''

RELEASED = b'"released"\n'


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> WorkerProcess:
    """Few slots; a long tick opens the window between the end of a lease and its sweep."""
    return start_worker({"f": FUNCTIONS}, config=f"task_slots = {SLOTS}\ntick_ms = {TICK_MS}\n")


class Gate:
    """Holds tasks until it is opened: a file that they wait for."""

    def __init__(self, client: OfficialClient, path: Path) -> None:
        self._client = client
        self.path = path
        self.args = [[str(path)]]
        self._task_ids: set[str] = set()

    def submit(self, task_id: str, **fields: Any) -> Any:
        self._task_ids.add(task_id)
        return self._client.submit_calls(task_id, "f.wait_for", self.args, call_budget_ms=0, **fields)

    def open(self) -> None:
        """Let the tasks go, and wait until they have."""
        self.path.touch()
        for task_id in self._task_ids:
            self._client.wait(task_id)


@pytest.fixture
def gate(client: OfficialClient, tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(client, tmp_path / "open")
    yield gate
    gate.open()


# --- the same id again --------------------------------------------------------------------------------------------


def test_the_same_request_again_is_answered_from_the_running_task(client, gate):
    """Repeating is safe while the task runs: the same slot, nothing is started twice."""
    first = gate.submit("again").task
    second = gate.submit("again").task
    assert second.slot_id == first.slot_id
    assert state_name(second.state) in {"ALLOCATED", "RUNNING"}
    gate.open()
    assert client.wait("again").statistic.calls_total == 1


def test_the_same_request_again_is_answered_from_the_ended_task(client):
    """And after its end: with the result and the outputs, without another call."""
    done = client.GetWorkerStatus().status.calls_done
    first = client.submit_calls("ended", "f.add", [[1, 2], ["a", "b"]], wait_ms=30_000)
    assert (state_name(first.task.state), first.outputs) == ("SUCCEEDED", b'3\n"ab"\n')
    again = client.submit_calls("ended", "f.add", [[1, 2], ["a", "b"]])
    assert again == first
    assert client.RequestTaskSlot(task_id="ended").task == first.task
    assert client.GetWorkerStatus().status.calls_done == done + 2


def test_labels_and_slot_do_not_make_another_request(client, gate):
    """They are for people and for admission, not part of what is computed."""
    first = gate.submit("labelled", labels={"run": "1"}).task
    assert gate.submit("labelled", labels={"run": "2", "by": "me"}).task.slot_id == first.slot_id
    assert gate.submit("labelled", slot_id=first.slot_id).task.slot_id == first.slot_id


@pytest.mark.parametrize(
    "change",
    [
        {"timeout_ms": 1234},
        {"call_budget_ms": 77},
        {"call_failure_policy": 2},
        {"call_retry_policy": {"max_attempts": 9}},
        {"call_retry_policy": {"base_backoff_ms": 0}},
        {"result_handler": None},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
def test_another_request_under_the_same_id_is_a_conflict(client, tmp_path, change, ended):
    """Whatever differs: the first task goes on, and the second request is told to take another id."""
    task_id = f"conflict-{tmp_path.name}"
    gate = Gate(client, tmp_path / "open")
    gate.submit(task_id)
    if ended:
        gate.open()
        client.wait(task_id)
    fields: dict[str, Any] = {"call_budget_ms": 0, **change}
    code, message = refusal(lambda: client.submit_calls(task_id, "f.wait_for", gate.args, **fields))
    assert code == "INVALID_ARGUMENT"
    assert message.startswith("TASK_ID_CONFLICT: ")
    assert task_id in message
    assert "new task_id" in message
    gate.open()
    assert state_name(client.wait(task_id).state) == "SUCCEEDED"


def test_other_arguments_under_the_same_id_are_a_conflict(client):
    client.submit_calls("args", "f.add", [[1, 2]], wait_ms=30_000)
    code, message = refusal(lambda: client.submit_calls("args", "f.add", [[1, 3]]))
    assert (code, message.partition(":")[0]) == ("INVALID_ARGUMENT", "TASK_ID_CONFLICT")
    assert client.outputs("args") == [3]


# --- slots --------------------------------------------------------------------------------------------------------


def test_when_all_slots_are_taken_newcomers_are_told_to_try_later_or_elsewhere(client, gate):
    """Leased and running slots count alike; known ids are still answered; a slot given back serves the next."""
    gate.submit("full-running")
    client.RequestTaskSlot(task_id="full-a", ttl_ms=60_000)
    client.RequestTaskSlot(task_id="full-b", ttl_ms=60_000)
    for newcomer in (
        lambda: client.RequestTaskSlot(task_id="full-c"),
        lambda: client.submit_calls("full-c", "f.add", [[1, 2]]),
    ):
        code, message = refusal(newcomer)
        assert code == "RESOURCE_EXHAUSTED"
        assert message.startswith(f"NO_SLOT: all {SLOTS} task slots are taken")
        assert "try again later, or on another worker" in message
    assert client.RequestTaskSlot(task_id="full-a").task.slot_id
    assert gate.submit("full-running").task.slot_id
    status = client.GetWorkerStatus().status
    assert (status.task_slots, status.reserved_slots, status.running_tasks) == (SLOTS, 2, 1)
    given_back = client.CancelTask(task_id="full-a").task
    assert state_name(given_back.state) == "CANCELLED"
    taken = client.submit_calls("full-c", "f.add", [[1, 2]], wait_ms=30_000)
    assert taken.outputs == b"3\n"
    client.CancelTask(task_id="full-b")
    assert client.GetWorkerStatus().status.reserved_slots == 0


def test_a_task_runs_on_the_slot_that_was_leased_for_it(client):
    lease = client.RequestTaskSlot(task_id="leased", ttl_ms=60_000).task
    assert state_name(lease.state) == "ALLOCATED"
    assert 0 < lease.lease_remaining_ms <= 60_000
    again = client.RequestTaskSlot(task_id="leased", ttl_ms=1).task
    assert (again.slot_id, again.lease_remaining_ms > 1000) == (lease.slot_id, True)
    done = client.submit_calls("leased", "f.add", [[1, 2]], slot_id=lease.slot_id, wait_ms=30_000)
    assert (done.task.slot_id, done.outputs) == (lease.slot_id, b"3\n")


def test_a_slot_that_is_not_the_tasks_is_refused(client):
    """Unknown, of another task, or of one that has ended: FAILED_PRECONDITION, and what to do instead."""
    other = client.RequestTaskSlot(task_id="other", ttl_ms=60_000).task.slot_id
    ended = client.submit_calls("slot-ended", "f.add", [[1, 2]], wait_ms=30_000).task.slot_id
    for slot_id in ("slot-0-999999", "nonsense", other, ended):
        code, message = refusal(
            lambda slot=slot_id: client.submit_calls("thief", "f.add", [[1, 2]], slot_id=slot)  # type: ignore[misc]
        )
        assert code == "FAILED_PRECONDITION"
        assert message.startswith("INVALID_SLOT: ")
        assert slot_id in message
        assert "request a slot again, or submit without a slot_id" in message
    client.CancelTask(task_id="other")


def test_the_end_of_a_lease_before_at_and_after_the_sweep(client):
    """Before: accepted. Past its end, not yet swept: uncertain, try again. After: the slot is not yours."""
    just_after_a_tick(client)
    lease = client.RequestTaskSlot(task_id="lapsing", ttl_ms=50).task
    eventually(lambda: lapsed(client, "lapsing"))

    def submit(**fields: Any) -> Any:
        return client.submit_calls("lapsing", "f.add", [[1, 2]], **fields)

    for fields in ({"slot_id": lease.slot_id}, {}):
        code, message = refusal(lambda fields=fields: submit(**fields))  # type: ignore[misc]
        assert code == "ABORTED"
        assert message.startswith("SLOT_UNCERTAIN: ")
        assert "submit again with the same task_id" in message
    eventually(lambda: not known(client, "lapsing"))
    code, message = refusal(lambda: submit(slot_id=lease.slot_id))
    assert (code, message.partition(":")[0]) == ("FAILED_PRECONDITION", "INVALID_SLOT")
    assert submit(wait_ms=30_000).outputs == b"3\n"


def test_a_lease_past_its_end_is_renewed_by_asking_for_it_again(client):
    """The id still has its place until the sweep, so it need not queue anew."""
    just_after_a_tick(client)
    lease = client.RequestTaskSlot(task_id="renewed", ttl_ms=50).task
    eventually(lambda: lapsed(client, "renewed"))
    again = client.RequestTaskSlot(task_id="renewed", ttl_ms=60_000).task
    assert again.slot_id == lease.slot_id
    assert again.lease_remaining_ms > 50
    done = client.submit_calls("renewed", "f.add", [[1, 2]], slot_id=lease.slot_id, wait_ms=30_000)
    assert done.outputs == b"3\n"


# --- unknown ids --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GetTaskResult", "CancelTask"])
def test_an_unknown_id_is_not_found(client, method):
    code, message = refusal(lambda: getattr(client, method)(task_id="nobody"))
    assert code == "NOT_FOUND"
    assert message.startswith("NOT_FOUND: task 'nobody' is not known here")


def test_a_watch_tells_of_unknown_ids_and_goes_on_with_the_others(client, gate):
    """A not_found event for each id that is not known; the stream lives until the last known task has ended."""
    gate.submit("watched")
    events = client.WatchTasks(task_ids=["ghost", "watched", "phantom", "watched"], observe=True)
    missing = set()
    for event in events:
        if event.WhichOneof("event") == "not_found":
            missing.add(event.task_id)
        if missing == {"ghost", "phantom"}:
            break
    gate.open()
    rest = list(events)
    assert {event.task_id for event in rest} == {"watched"}
    assert rest[-1].result.output_count == 1
    assert b"".join(event.outputs.json_lines for event in rest) == RELEASED


def test_a_watch_of_unknown_ids_only_ends_at_once(client):
    events = list(client.WatchTasks(task_ids=["ghost"]))
    assert [(event.task_id, event.WhichOneof("event")) for event in events] == [("ghost", "not_found")]


# --- draining -----------------------------------------------------------------------------------------------------


def test_a_draining_worker_takes_nothing_new_and_still_answers_for_what_it_has(start_worker, tmp_path):
    """New ids → UNAVAILABLE; known ones can be asked for, repeated, watched and cancelled; then a clean end."""
    worker = start_worker({"f": FUNCTIONS})
    with OfficialClient(worker.address) as client:
        ended = client.submit_calls("ended", "f.add", [[1, 2]], wait_ms=30_000)
        gate = Gate(client, tmp_path / "open")
        running = gate.submit("running").task
        gate.submit("cancelled")
        lease = client.RequestTaskSlot(task_id="lease", ttl_ms=60_000).task
        watch = client.WatchTasks(task_ids=["running"], observe=True)
        worker.terminate()
        eventually(lambda: client.GetWorkerStatus().status.draining)

        for newcomer in (
            lambda: client.submit_calls("new", "f.add", [[1, 2]]),
            lambda: client.RequestTaskSlot(task_id="new"),
            lambda: client.submit_calls("lease", "f.add", [[1, 2]], slot_id=lease.slot_id),
        ):
            code, message = refusal(newcomer)
            assert code == "UNAVAILABLE"
            assert message.startswith("UNAVAILABLE: the worker is shutting down")
            assert "another worker with the same task_id" in message
        assert health(client) == "NOT_SERVING"
        assert gate.submit("running").task.slot_id == running.slot_id
        assert client.submit_calls("ended", "f.add", [[1, 2]]) == ended
        assert client.GetTaskResult(task_id="ended").outputs.json_lines == b"3\n"
        code, message = refusal(lambda: client.submit_calls("ended", "f.add", [[2, 2]]))
        assert (code, message.partition(":")[0]) == ("INVALID_ARGUMENT", "TASK_ID_CONFLICT")
        assert refusal(lambda: client.GetTaskResult(task_id="nobody"))[0] == "NOT_FOUND"
        assert state_name(client.CancelTask(task_id="cancelled").task.state) == "CANCELLED"

        gate.open()
        events = list(watch)
        assert b"".join(event.outputs.json_lines for event in events) == RELEASED
        assert state_name(events[-1].result.state) == "SUCCEEDED"
    assert worker.wait() == 0


def health(client: OfficialClient) -> str:
    reply = health_pb2_grpc.HealthStub(client.channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


# --- helpers ------------------------------------------------------------------------------------------------------


def known(client: OfficialClient, task_id: str) -> bool:
    """Whether the worker knows the id."""
    return any(event.WhichOneof("event") == "snapshot" for event in first_events(client, task_id))


def lapsed(client: OfficialClient, task_id: str) -> bool:
    """Whether its lease is past its end; the slot has to be there still."""
    snapshot = client.GetTaskResult(task_id=task_id).task
    return bool(snapshot.lease_remaining_ms == 0)


def first_events(client: OfficialClient, task_id: str) -> list[Any]:
    """What a watch says first."""
    stream = client.WatchTasks(task_ids=[task_id], observe=True)
    event = next(stream)
    stream.cancel()
    return [event]


def just_after_a_tick(client: OfficialClient) -> None:
    """Return when a tick has swept a lease, so that the next is a whole tick away."""
    client.RequestTaskSlot(task_id="tick", ttl_ms=1)
    eventually(lambda: not known(client, "tick"))
