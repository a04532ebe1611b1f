"""Places at a back end and the queues of tasks."""

from __future__ import annotations

from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from blockx_worker.io.admission import Admission, QueueLimits, Ticket


def admission(places=1, requests=10, size=100):
    return Admission(places, QueueLimits(requests=requests, size=size))


def test_a_queue_is_bounded_by_the_bytes_of_its_requests():
    places = admission(size=100)
    first = places.enter("t", 1000)
    assert first.admitted.is_set()
    assert places.enter("t", 101) is None
    waiting = places.enter("t", 60)
    assert places.enter("t", 41) is None
    assert places.enter("u", 41) is not None
    places.leave(waiting)
    assert places.enter("t", 100) is not None


def test_a_queue_of_nothing_lets_in_what_has_a_place():
    places = admission(places=2, requests=0)
    assert [places.enter("t", 1) is None for _ in range(3)] == [False, False, True]


def test_free_places_go_round_the_tasks():
    places = admission()
    running = places.enter("a", 1)
    order = [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("c", 1), ("b", 2)]
    tickets = {name: places.enter(name[0], 1) for name in order}
    served = []
    while tickets:
        places.leave(running)
        (name, running) = next((n, t) for n, t in tickets.items() if t.admitted.is_set())
        served.append(name)
        del tickets[name]
    assert served == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("a", 3)]


class AdmissionMachine(RuleBasedStateMachine):
    """Beside a naive model: never above the places, never idle while somebody waits, first come first served in a task."""

    def __init__(self):
        super().__init__()
        self.places = admission(places=2, requests=3, size=10)
        self.inside = []
        self.waiting: dict[str, deque[Ticket]] = {name: deque() for name in "abc"}

    @rule(name=st.sampled_from("abc"), size=st.integers(0, 6))
    def enter(self, name, size):
        queue = self.waiting[name]
        full = len(queue) >= 3 or sum(t.size for t in queue) + size > 10
        ticket = self.places.enter(name, size)
        assert (ticket is None) == (len(self.inside) == 2 and full)
        if ticket is not None:
            (self.inside if ticket.admitted.is_set() else queue).append(ticket)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def leave(self, data):
        ticket = data.draw(st.sampled_from(self.inside))
        self.inside.remove(ticket)
        self.places.leave(ticket)
        for queue in self.waiting.values():
            if queue and queue[0].admitted.is_set():
                self.inside.append(queue.popleft())

    @precondition(lambda self: any(self.waiting.values()))
    @rule(data=st.data())
    def give_up(self, data):
        queue = data.draw(st.sampled_from([q for q in self.waiting.values() if q]))
        ticket = data.draw(st.sampled_from(list(queue)))
        queue.remove(ticket)
        self.places.leave(ticket)

    @invariant()
    def right(self):
        assert len(self.inside) <= 2
        assert len(self.inside) == 2 or not any(self.waiting.values())
        assert not any(t.admitted.is_set() for queue in self.waiting.values() for t in queue)


TestAdmissionMachine = AdmissionMachine.TestCase
