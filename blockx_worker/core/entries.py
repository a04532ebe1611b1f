"""What WorkerCore holds of one task id while it holds a slot."""

from __future__ import annotations

import attrs

from blockx_worker.core.events import PhaseOutcome
from blockx_worker.core.slots import Slot
from blockx_worker.core.states import INITIAL_STAGE, TASK_TRANSITIONS, VISIBLE, Move, Stage
from blockx_worker.model.tasks import TaskFailure, TaskPhase, TaskRequest, TaskState

__all__ = ["End", "Entry", "merged"]


@attrs.frozen(kw_only=True)
class End:
    """An end that comes from outside: a time-out, a cancel, a lost owner, the end of the drain."""

    event: str
    move: Move
    failure: TaskFailure


@attrs.define(kw_only=True)
class Entry:
    """One task id with a slot: leased, or submitted and not ended. Times are core time in ms.

    ``watchers`` counts the owning ones. ``put_off`` is the end that waits for a commit. ``outcome`` is what the phases
    have reported so far, merged. ``written`` says what the writer has committed so far.
    """

    task_id: str
    slot: Slot
    version: int
    stage: Stage = INITIAL_STAGE
    request: TaskRequest | None = None
    deadline_ms: int = 0
    epoch: int | None = None
    watchers: int = 0
    grace_deadline_ms: int | None = None
    put_off: End | None = None
    outcome: PhaseOutcome = attrs.field(factory=PhaseOutcome)
    written: str = ""

    @property
    def submitted(self) -> bool:
        """False while only a slot is leased."""
        return self.stage is not Stage.LEASED

    @property
    def state(self) -> TaskState:
        """The state that clients see."""
        return VISIBLE[self.stage][0]

    @property
    def phase(self) -> TaskPhase | None:
        """The phase that clients see; None while only a slot is leased."""
        return VISIBLE[self.stage][1]

    def after(self, move: Move) -> Stage | None:
        """The stage that ``move`` leads to from here; None where the table has no such move."""
        return TASK_TRANSITIONS.get((self.stage, move))

    def interruptible(self) -> bool:
        """True for a submitted task for which no end has been put off yet."""
        return self.submitted and self.put_off is None

    def telling_what_stays(self, failure: TaskFailure) -> TaskFailure:
        """``failure`` of an end from outside, which knows nothing of the writer, with what is written."""
        if not self.written:
            return failure
        return attrs.evolve(failure, message=f"{failure.message}; {self.written}")


def merged(known: PhaseOutcome, given: PhaseOutcome) -> PhaseOutcome:
    """What is given replaces what was known; a field left at its default says nothing."""
    said = {field.name: getattr(given, field.name) for field in attrs.fields(PhaseOutcome)}
    return attrs.evolve(known, **{name: value for name, value in said.items() if value})
