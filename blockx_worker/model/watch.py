"""What watchers and readers of results receive; one vocabulary for the server's side and the client's."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from blockx_worker.model.tasks import TaskResult, TaskSnapshot

__all__ = [
    "ExecutorStatus",
    "OutputChunk",
    "ResultPage",
    "TaskNotFound",
    "TaskOutputs",
    "TaskProgress",
    "TaskResulted",
    "TaskSnapshotted",
    "WatchEvent",
    "WorkerStatus",
]


@attrs.frozen(kw_only=True)
class TaskProgress:
    """How far the calls of a task are. ``total`` None while unknown."""

    total: int | None = None
    succeeded: int = 0
    failed: int = 0
    inflight: int = 0


@attrs.frozen(kw_only=True)
class OutputChunk:
    """A piece (at most 1 MiB) of the outputs as JSON lines, in the order of the call list.

    The chunks of a task joined are its output file. A line longer than a chunk goes on in the next one: ``first_index``
    is the call of the chunk's first byte, ``count`` the number of lines that end inside the chunk. ``offset`` is the
    position of the first byte.
    """

    offset: int
    first_index: int
    count: int
    json_lines: bytes


@attrs.frozen(kw_only=True)
class ResultPage:
    """A task and one page of its outputs. Read on at ``next_offset`` until it equals ``output_bytes``."""

    snapshot: TaskSnapshot
    chunk: OutputChunk | None
    next_offset: int
    output_bytes: int


@attrs.frozen(kw_only=True)
class TaskSnapshotted:
    """State, phase or progress changed."""

    snapshot: TaskSnapshot
    progress: TaskProgress | None = None


@attrs.frozen(kw_only=True)
class TaskOutputs:
    """More outputs are there."""

    task_id: str
    chunk: OutputChunk


@attrs.frozen(kw_only=True)
class TaskResulted:
    """The task has ended and all its outputs were sent."""

    task_id: str
    result: TaskResult


@attrs.frozen(kw_only=True)
class TaskNotFound:
    """The worker does not know this task (never did, or no longer)."""

    task_id: str


WatchEvent: TypeAlias = TaskSnapshotted | TaskOutputs | TaskResulted | TaskNotFound


@attrs.frozen(kw_only=True)
class ExecutorStatus:
    """One executor slot. ``state`` is the pool's word; the numbers are 0 while no process is attached."""

    executor_id: str
    state: str
    pid: int = 0
    inflight: int = 0
    runnable: int = 0
    memory_bytes: int = 0
    running_call_id: str = ""


@attrs.frozen(kw_only=True)
class WorkerStatus:
    """The worker at one moment. Admission maps a stage to (in use, waiting, limit)."""

    version: str
    profile: str
    address: str
    uptime_ms: int
    draining: bool
    task_slots: int
    reserved_slots: int
    running_tasks: int
    retained_results: int
    retained_bytes: int
    function_epoch: int
    functions: int
    calls_done: int
    executors: tuple[ExecutorStatus, ...] = ()
    tasks: tuple[TaskSnapshot, ...] = ()
    admission: dict[str, tuple[int, int, int]] = attrs.field(factory=dict)
    dropped: dict[str, int] = attrs.field(factory=dict)
