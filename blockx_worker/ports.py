"""What the orchestrator asks of its surroundings, and what it offers to the RPC layer.

Every thread, process, socket, wall clock and random id of the worker stands behind one of these, so that the whole
shell can run on fakes with a mock clock. A fake passes the same contract tests as the real thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import attrs
import trio

from blockx_worker.dispatch.source import CallSource, ResolvedFunction
from blockx_worker.model.errors import TaskFailureCode
from blockx_worker.model.tasks import TaskRequest, TaskSnapshot
from blockx_worker.model.watch import ResultPage, WatchEvent, WorkerStatus

__all__ = [
    "BlockStore",
    "BlockStoreError",
    "BuildResult",
    "BuilderContext",
    "CallBuilder",
    "Clock",
    "CommitGate",
    "ExecutorPlace",
    "ExecutorPlaces",
    "ExecutorProcess",
    "ExecutorSpawner",
    "FunctionCode",
    "FunctionProvider",
    "FunctionView",
    "LinkListener",
    "OutputLines",
    "SpawnRequest",
    "StepFailed",
    "SubmitReply",
    "Threads",
    "WatchCursor",
    "WorkerApi",
    "WriteStopped",
    "WriterContext",
    "WriterPlugin",
]

T = TypeVar("T")


class StepFailed(Exception):
    """A builder, plugin or provider says why it failed: a code and one sentence for the person who wrote the task.

    Raise it for everything that is a user's mistake; any other exception counts as a defect of the step and is logged
    with its traceback.
    """

    def __init__(self, code: TaskFailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# --- surroundings -----------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Wall time, only where a person or another system reads it."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""


class Threads(Protocol):
    """Blocking work off the Trio thread."""

    async def run(self, work: Callable[..., T], *args: Any, interrupt: Callable[[], None] | None = None) -> T:
        """Run ``work(*args)`` in a thread and wait for it, always to its end.

        On cancellation ``interrupt`` is called (from the Trio thread) to make the work return early; the thread is
        still joined, then the cancellation goes on. Without ``interrupt`` the wait is simply not cancellable.
        """

    def call_back(self, function: Callable[..., T], *args: Any) -> T:
        """From inside such work: call a synchronous function on the Trio thread and wait for its value."""


@attrs.frozen(kw_only=True)
class SpawnRequest:
    """One executor process to start; paths are absolute."""

    executor_id: str
    socket_path: str
    blackbox_path: str
    max_inflight: int
    max_runnable: int


class ExecutorProcess(Protocol):
    """A started executor process."""

    @property
    def pid(self) -> int:
        """Its process id."""

    async def wait(self) -> int:
        """Wait for its end; the exit code as `subprocess` gives it (negative = signal)."""

    def terminate(self) -> None:
        """Send SIGTERM; harmless when it is gone."""

    def kill(self) -> None:
        """Send SIGKILL to the process and its session; harmless when it is gone."""

    async def output_lines(self, handle: Callable[[str, bytes], None]) -> None:
        """Pass each line of stdout and stderr as (stream name, line) until both end; never stops reading."""


class LinkListener(Protocol):
    """The listening end of one executor's Unix socket."""

    async def accept(self) -> trio.abc.Stream:
        """The executor's connection; peers of another user or process are turned away, not returned."""

    def close(self) -> None:
        """Stop listening and unlink the socket; harmless when done before."""


class ExecutorPlace(Protocol):
    """The private directory of one executor process: its socket and its black box."""

    @property
    def socket_path(self) -> str:
        """Where the executor connects."""

    @property
    def blackbox_path(self) -> str:
        """The shared page, zero filled."""

    def listen(self) -> LinkListener:
        """Listen on the socket."""

    def expect_pid(self, pid: int) -> None:
        """Accept only this process from now on."""

    def read_blackbox(self) -> bytes:
        """The page as it stands."""

    def remove(self) -> None:
        """Remove the directory and what is in it."""


class ExecutorPlaces(Protocol):
    """Makes places for executor processes."""

    def make(self, name: str) -> ExecutorPlace:
        """A fresh private directory."""


class ExecutorSpawner(Protocol):
    """Starts executor processes."""

    def spawn(self, request: SpawnRequest) -> ExecutorProcess:
        """Start one; called on the Trio main thread. Raises OSError with a message for people."""


# --- functions --------------------------------------------------------------------------------------------------


@attrs.frozen
class FunctionCode:
    """The code behind one digest: file paths (with ``/``, relative to the package root) to source text.

    ``main`` is the path of the module that holds the functions; left out, it is the first file.
    """

    digest: str
    files: Mapping[str, str]
    main: str = attrs.field(default=attrs.Factory(lambda self: next(iter(self.files)), takes_self=True))


class FunctionView(Protocol):
    """The immutable mapping of one epoch."""

    @property
    def epoch(self) -> int:
        """Version number of this mapping, rising."""

    @property
    def function_ids(self) -> Sequence[str]:
        """All functions, sorted."""

    def resolve(self, function_id: str) -> ResolvedFunction:
        """The function of that id; StepFailed(FUNCTION_NOT_FOUND) that names near misses."""

    def code(self, digest: str) -> FunctionCode:
        """The code of a digest of this view; KeyError for another."""


class FunctionProvider(Protocol):
    """Gives tasks their view of the function code."""

    def current(self) -> FunctionView:
        """The newest epoch; the task that takes it keeps it until its end."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow changes until cancelled; started once the first epoch stands."""


# --- block tables -----------------------------------------------------------------------------------------------


class BlockStoreError(Exception):
    """A block store cannot give what was asked for: one sentence for people that names the table, file or block."""


class BlockStore(Protocol):
    """Rows of tables by block, as raw JSON text. Blocking: call it in a thread."""

    def read_blocks(
        self, table: str, first: int, last: int, interrupted: Callable[[], bool] = ...
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Yield (block, JSON text of each row) for each block of the inclusive range that has rows, in order.

        BlockStoreError for a table, block or row that is not as it should be, also after some blocks, and soon after
        ``interrupted`` has become true.
        """


# --- builders and plugins ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class BuilderContext:
    """What a call builder may use. ``scan`` limits how many tasks read block tables at once."""

    task_id: str
    view: FunctionView
    threads: Threads
    scan: AbstractAsyncContextManager[Any]
    batch_max_rows: int
    batch_max_args_bytes: int


@attrs.frozen(kw_only=True)
class BuildResult:
    """The calls of a task, and for table tasks the inclusive range of blocks that they cover."""

    source: CallSource
    blocks: tuple[int, int] | None = None


class CallBuilder(Protocol):
    """Expands a call configuration of its ``type`` into calls."""

    type: str

    async def build(self, context: BuilderContext, config: bytes) -> BuildResult:
        """Decode ``config`` (JSON object text) and make the calls; StepFailed for what the user can mend."""


class OutputLines(Protocol):
    """The outputs of a succeeded calls phase, in call order; readable from any thread."""

    @property
    def count(self) -> int:
        """Number of outputs."""

    def lines(self, start: int = 0) -> Iterator[bytes]:
        """JSON text of each output from index ``start`` on, without the newline."""


class WriteStopped(Exception):
    """A writer rolled back and stopped because the gate refused or an interrupt came: the task has ended already."""


class CommitGate(Protocol):
    """Asks the core for leave to commit; callable from the writer's thread only."""

    def start(self, *, final: bool, written: str = "") -> bool:
        """True: commit now, nothing ends the task before the outcome is in. False: roll back and stop.

        ``written``: a clause that says what earlier commits have written and stays; empty if nothing.
        """

    def ended(self, *, written: str = "") -> None:
        """A commit that was not the final one has returned; ``written`` as in `start`, as it is now."""


@attrs.frozen(kw_only=True)
class WriterContext:
    """What a writer may use. ``wall_ms`` is the time for columns that people read."""

    task_id: str
    blocks: tuple[int, int] | None
    threads: Threads
    gate: CommitGate
    wall_ms: int


class WriterPlugin(Protocol):
    """Takes the outputs of a task of its ``type``."""

    type: str
    keeps_outputs: bool  # outputs stay readable by clients after the end

    def check(self, config: bytes, blocks: tuple[int, int] | None) -> None:
        """Refuse a bad configuration before any call runs; ``blocks`` None for call lists."""

    async def write(self, context: WriterContext, config: bytes, outputs: OutputLines) -> bytes:
        """Write all outputs; returns the JSON text for ``plugin_results``. StepFailed for what the user can mend."""


# --- what the orchestrator offers -------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class SubmitReply:
    """Answer to a submit; after ``wait_ms`` with the result and all outputs (JSON lines, at most 1 MiB) if it ended.

    ``outputs`` None: not ended yet, or too large; read them with GetTaskResult.
    """

    snapshot: TaskSnapshot
    outputs: bytes | None = None


class WatchCursor(Protocol):
    """A position over the states and outputs of the watched tasks; owns no queue."""

    async def next(self) -> Sequence[WatchEvent] | None:
        """Wait for news and return it (at most about 1 MiB of outputs); None when all tasks have ended."""


class WorkerApi(Protocol):
    """The six RPCs without gRPC; every refusal is a `WorkerError`. All methods run on the Trio thread."""

    def request_task_slot(self, task_id: str, ttl_ms: int) -> TaskSnapshot:
        """Lease a slot; ``ttl_ms`` 0 = default."""

    async def submit_task(self, request: TaskRequest, wait_ms: int = 0) -> SubmitReply:
        """Submit, and wait up to ``wait_ms`` for the end."""

    def get_task_result(self, task_id: str, output_offset: int = 0) -> ResultPage:
        """State, result and one page of outputs."""

    def watch(self, task_ids: Sequence[str], *, observe: bool) -> AbstractAsyncContextManager[WatchCursor]:
        """Watch tasks; leaving the context detaches. Unknown ids yield `TaskNotFound`."""

    def cancel_task(self, task_id: str, reason: str) -> TaskSnapshot:
        """Cancel a task, or give a leased slot back; idempotent."""

    def worker_status(self) -> WorkerStatus:
        """The worker as it stands."""

    @property
    def serving(self) -> bool:
        """False while no executor is attached or the worker drains (for health)."""
