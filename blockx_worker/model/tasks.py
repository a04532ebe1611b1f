"""Tasks as the layers speak of them: the request, states and phases, the result and its statistic."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import attrs

from blockx_worker.model.errors import TaskFailureCode

__all__ = [
    "ENDED_STATES",
    "CallFailurePolicy",
    "CallRetryPolicy",
    "FailedCall",
    "TaskFailure",
    "TaskPhase",
    "TaskRequest",
    "TaskResult",
    "TaskSnapshot",
    "TaskState",
    "TaskStatistic",
    "TypedConfig",
]


class TaskState(StrEnum):
    """What a client sees of a task."""

    ALLOCATED = "ALLOCATED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"


ENDED_STATES = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.TIMED_OUT, TaskState.CANCELLED})


class TaskPhase(StrEnum):
    """Where an unfinished task stands; DONE once it has ended."""

    PREPARING = "PREPARING"
    BUILDER = "BUILDER"
    CALLS = "CALLS"
    PLUGIN = "PLUGIN"
    DONE = "DONE"


class CallFailurePolicy(StrEnum):
    """FAST_FAIL stops at the first final failure; COLLECT_ALL runs every call and lists the failures."""

    FAST_FAIL = "FAST_FAIL"
    COLLECT_ALL = "COLLECT_ALL"


@attrs.frozen(kw_only=True)
class CallRetryPolicy:
    """How often one call is tried, and the base of the exponential back-off in ms."""

    max_attempts: int = 3
    base_backoff_ms: int = 10


@attrs.frozen
class TypedConfig:
    """A configuration chosen by its ``type``; ``config`` is the JSON text of an object, decoded by its owner."""

    type: str
    config: bytes = b"{}"


@attrs.frozen(kw_only=True)
class TaskRequest:
    """One submitted task, defaults already filled in.

    ``timeout_ms`` > 0. ``call_budget_ms``: 0 = no budget. ``labels`` and ``slot_id`` do not belong to the fingerprint.
    """

    task_id: str
    function_call_config: TypedConfig
    result_handler: TypedConfig | None = None
    slot_id: str | None = None
    instance_id: str = ""
    timeout_ms: int
    call_failure_policy: CallFailurePolicy = CallFailurePolicy.FAST_FAIL
    call_retry_policy: CallRetryPolicy = CallRetryPolicy()
    call_budget_ms: int = 5000
    labels: dict[str, str] = attrs.field(factory=dict)
    is_shadow: bool = False
    fingerprint: str = attrs.field(init=False, repr=False)

    @fingerprint.default
    def _fingerprint(self) -> str:
        """Digest over all that makes two requests with one task_id the same request."""
        digest = hashlib.sha256()
        for config in (self.function_call_config, self.result_handler):
            for part in (b"-",) if config is None else (config.type.encode(), config.config):
                digest.update(len(part).to_bytes(8, "big"))
                digest.update(part)
        policy = self.call_retry_policy
        digest.update(
            repr(
                (
                    self.timeout_ms,
                    str(self.call_failure_policy),
                    policy.max_attempts,
                    policy.base_backoff_ms,
                    self.call_budget_ms,
                    self.is_shadow,
                )
            ).encode()
        )
        return digest.hexdigest()


@attrs.frozen(kw_only=True)
class TaskFailure:
    """Why a task did not succeed; the call fields are set when one call's failure ended it."""

    code: TaskFailureCode
    message: str
    call_id: str = ""
    function_id: str = ""
    args_preview: str = ""
    error_kind: str = ""
    stack: str = ""
    locals: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class FailedCall:
    """One finally failed call of a task, by its index in the call list."""

    index: int
    error_kind: str
    message: str
    args_preview: str = ""
    attempts: int = 1


@attrs.frozen(kw_only=True)
class TaskStatistic:
    """What a task cost. Counts of calls are root calls; times are wall time in ms, ``executor_ms`` summed over calls."""

    calls_total: int = 0
    calls_succeeded: int = 0
    calls_failed: int = 0
    calls_cancelled: int = 0
    attempts: int = 0
    retries: int = 0
    cache_hits: int = 0
    subcalls: int = 0
    io_requests: int = 0
    output_bytes: int = 0
    queue_ms: int = 0
    build_ms: int = 0
    call_ms: int = 0
    write_ms: int = 0
    executor_ms: int = 0


@attrs.frozen(kw_only=True)
class TaskResult:
    """The one result of a task, without its outputs.

    ``failed_calls`` holds at most the first 1000; ``failed_calls_omitted`` counts the rest. ``plugin_results`` is the
    JSON text of what the writer reports (row counts by table). ``output_count`` lines stand in the output segments.
    """

    task_id: str
    state: TaskState
    failure: TaskFailure | None = None
    failed_calls: tuple[FailedCall, ...] = ()
    failed_calls_omitted: int = 0
    plugin_results: bytes = b""
    statistic: TaskStatistic = TaskStatistic()
    output_count: int = 0
    output_bytes: int = 0


@attrs.frozen(kw_only=True)
class TaskSnapshot:
    """A task or leased slot at one moment, as clients see it. ``lease_remaining_ms`` only while ALLOCATED."""

    task_id: str
    slot_id: str
    state: TaskState
    phase: TaskPhase | None = None
    lease_remaining_ms: int = 0
    result: TaskResult | None = None
