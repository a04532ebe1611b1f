"""Which worker is asked first: a pure decision with a memory of a second."""

from __future__ import annotations

from blockx_worker.client.choice import AVOIDED_S, OFFERED_S, Chooser
from blockx_worker.registry.value import WorkerValue, decode_value, encode_value


def worker(name: str, free: int, *, draining: bool = False) -> WorkerValue:
    return WorkerValue(address=name, instance=name, task_slots=10, running_tasks=10 - free, draining=draining)


def names(chooser: Chooser, workers: list[WorkerValue], now_s: float = 0.0) -> str:
    return "".join(w.address for w in chooser.in_order(workers, now_s))


def test_most_free_slots_first_full_ones_last_draining_ones_never():
    workers = [worker("a", 0), worker("b", 5), worker("c", 7), worker("d", 9, draining=True)]
    assert names(Chooser(lambda: 0.5), workers) == "cba"


def test_ties_are_broken_by_the_given_chance():
    ranks = iter([0.9, 0.1, 0.1, 0.9])
    chooser = Chooser(lambda: next(ranks))
    workers = [worker("a", 5), worker("b", 5)]
    assert names(chooser, workers) == "ba"
    assert names(chooser, workers) == "ab"


def test_what_was_offered_a_moment_ago_counts_as_taken_and_is_forgotten():
    chooser, workers = Chooser(lambda: 0.5), [worker("a", 5), worker("b", 4)]
    for _ in range(2):
        chooser.offered(workers[0], 0.0)
    assert names(chooser, workers, 0.1) == "ba"
    assert names(chooser, workers, OFFERED_S + 0.1) == "ab"


def test_an_unreachable_worker_comes_last_for_a_while():
    chooser, workers = Chooser(lambda: 0.5), [worker("a", 9), worker("b", 0)]
    chooser.unreachable(workers[0], 0.0)
    assert names(chooser, workers, 0.1) == "ba"
    assert names(chooser, workers, AVOIDED_S + 0.1) == "ab"


def test_a_value_survives_its_text_and_unknown_fields_are_passed_over():
    value = WorkerValue(address="a:1", instance="i", task_slots=4, reserved_slots=1, running_tasks=5)
    assert decode_value(encode_value(value)) == value
    assert value.free_slots == 0
    assert decode_value(b'{"address": "a:1", "instance": "i", "colour": "red"}') is not None
    assert decode_value(b'{"address": "a:1"}') is None
    assert decode_value(b"\xff") is None
