"""How many requests one back end works on at once, and whose turn is next.

All tasks share the places. Each task has its own queue, bounded by number and bytes, and free places go round the tasks
that wait, so that a task that asks for a thousand things at once delays another by one request, not by a thousand, and
fills only its own queue.
"""

from __future__ import annotations

from collections import OrderedDict

import attrs
import trio

__all__ = ["Admission", "QueueLimits", "Ticket"]


@attrs.frozen(kw_only=True)
class QueueLimits:
    """Bounds of the queue of one task at one back end. A request is let in while the queue is within both."""

    requests: int
    size: int


@attrs.define(eq=False)
class Ticket:
    """One request's place, or its wait for one; `size` is what it counts for in the queue, in bytes."""

    task_id: str
    size: int
    admitted: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class _Queue:
    tickets: OrderedDict[Ticket, None] = attrs.field(factory=OrderedDict)
    size: int = 0


class Admission:
    """The places of one back end; all methods are synchronous and take constant time."""

    def __init__(self, places: int, limits: QueueLimits) -> None:
        self._free = places
        self._limits = limits
        self._queues: OrderedDict[str, _Queue] = OrderedDict()

    def enter(self, task_id: str, size: int) -> Ticket | None:
        """A ticket, admitted already or in the task's queue; None when that is full. Give it back with `leave`."""
        ticket = Ticket(task_id, size)
        if self._free:
            self._free -= 1
            ticket.admitted.set()
            return ticket
        queue = self._queues.get(task_id, _Queue())
        if len(queue.tickets) >= self._limits.requests or queue.size + size > self._limits.size:
            return None
        queue.tickets[ticket] = None
        queue.size += size
        self._queues[task_id] = queue
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """The request is over, or given up while it waited."""
        if not ticket.admitted.is_set():
            self._take(ticket)
        elif self._queues:
            task_id, queue = self._queues.popitem(last=False)
            self._queues[task_id] = queue  # the task goes to the end of the round
            following = next(iter(queue.tickets))
            self._take(following)
            following.admitted.set()
        else:
            self._free += 1

    def _take(self, ticket: Ticket) -> None:
        queue = self._queues[ticket.task_id]
        del queue.tickets[ticket]
        queue.size -= ticket.size
        if not queue.tickets:
            del self._queues[ticket.task_id]
