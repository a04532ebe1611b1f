"""Every setting of the worker: type, default, range and one sentence, in one place.

The sentence, the range and the names in the environment stand in the annotation, so that the loader, `blockx config` and
`docs/reference/config.md` all read the same source. A ``kind`` tells how text is read: durations (``ms``), sizes
(``bytes``) and paths. Derived values (`executor_count`, the stall and heartbeat time-outs) are filled in on construction:
a `Settings` always holds the numbers that are used.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from blockx_worker.config.addresses import is_loopback, parse_address
from blockx_worker.config.annotations import (
    DAY_MS,
    GIB,
    KIB,
    MIB,
    Section,
    count,
    ms,
    path,
    size,
    word,
)
from blockx_worker.config.cluster_settings import EtcdSettings, ShadowSettings
from blockx_worker.config.io_settings import IoSettings
from blockx_worker.config.security_settings import TlsSettings

__all__ = [
    "AdmissionSettings",
    "DispatcherSettings",
    "LogSettings",
    "RpcSettings",
    "Settings",
    "StreamBuildSettings",
    "WriterSettings",
]

STALL_GRACE_MS = 5000
STALL_MARGIN_MS = 1000
MIN_HEARTBEAT_TIMEOUT_MS = 10_000

DEFAULT_ENV_ALLOW = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONPATH",
    "TMPDIR",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
)

LogFormat: TypeAlias = Literal["auto", "console", "json"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


def usable_cpus() -> int:
    """How many CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


class DispatcherSettings(Section, frozen=True, kw_only=True):
    """How calls are chosen, sent, watched and given up."""

    executor_max_inflight: Annotated[int, count(1, 65_536, "Calls that one executor may hold at once.")] = 128
    executor_max_runnable: Annotated[
        int, count(1, 65_536, "Runnable calls above which an executor gets no new ones.")
    ] = 128
    executor_memory_recycle_bytes: Annotated[
        int,
        size(
            0,
            1 << 50,
            "Memory of an executor above which it gets no new calls and, once empty, is replaced; 0 = never.",
        ),
    ] = 0
    executor_selection_sample_size: Annotated[
        int,
        count(
            0,
            1024,
            "Eligible executors that are compared for each call; 0 compares all.",
            env="EXECUTOR_SELECTION_SAMPLE_SIZE",
        ),
    ] = 0
    executor_memory_high_watermark: Annotated[
        int, size(0, 1 << 50, "Memory of an executor above which it gets no new calls; 0 = no limit.")
    ] = 0
    task_max_inflight_calls: Annotated[
        int, count(1, 1_000_000, "Calls of one task that are ready, running or waiting at once.")
    ] = 1024
    call_deadline_ms: Annotated[
        int,
        ms(
            0,
            DAY_MS,
            "Budget of one attempt of a call where the task names none: time on the executor, IO, subcalls and sleep, "
            "without queueing; 0 = no budget.",
            env="CALL_DEADLINE_MS",
        ),
    ] = 5000
    scheduler_stall_timeout_ms: Annotated[
        int,
        ms(
            0,
            2 * DAY_MS,
            "An executor whose scheduler stood still for longer gets no new calls. 0 = call_deadline_ms + 5 s, which is "
            "also used instead of a value that is not more than 1 s above call_deadline_ms.",
            env="SCHEDULER_STALL_TIMEOUT_MS",
        ),
    ] = 0
    max_subcall_depth: Annotated[int, count(1, 64, "How deep calls may call other functions.")] = 8
    base_backoff_ms: Annotated[
        int, ms(0, 60_000, "Base of the exponential back-off between attempts where the task names none.")
    ] = 10
    instance_fairness: Annotated[
        bool,
        word(
            "Share the executors max-min fairly over instance ids instead of round robin over tasks.",
            env="DISPATCH_INSTANCE_FAIRNESS",
        ),
    ] = False
    instance_fairness_quantum: Annotated[
        int,
        count(
            0,
            1024,
            "Calls in a row from one instance before the next is chosen; 0 and 1 choose for every call. Needs "
            "instance_fairness.",
            env="DISPATCH_INSTANCE_FAIRNESS_QUANTUM",
        ),
    ] = 0
    max_collected_output_bytes: Annotated[
        int,
        size(
            0,
            1 << 50,
            "Outputs of one task above which it ends as OUTPUT_BYTES_EXCEEDED; 0 = no limit.",
            env="MAX_COLLECTED_OUTPUT_BYTES",
        ),
    ] = 0
    call_cache_bytes: Annotated[
        int, size(0, 1 << 40, "Memory for the results of calls that a task may repeat; 0 = no cache.")
    ] = 32 * MIB
    actor_slice_calls: Annotated[
        int, count(1, 65_536, "Calls handled in one go before other work of the worker gets its turn.")
    ] = 128
    heartbeat_timeout_ms: Annotated[
        int,
        ms(
            0,
            3 * DAY_MS,
            "An executor that was not heard for longer is killed and replaced. 0 = the stall time-out + 5 s, at "
            "least 10 s.",
        ),
    ] = 0
    heartbeat_interval_ms: Annotated[int, ms(10, 60_000, "How often an executor reports.")] = 500
    cancel_kill_ms: Annotated[
        int, ms(100, 600_000, "An executor that does not stop a cancelled call for so long is killed.")
    ] = 2000
    wedge_grace_ms: Annotated[
        int, ms(100, 600_000, "An executor that does not stop a call so long after its budget is killed.")
    ] = 5000
    outbox_frames: Annotated[
        int, count(2, 65_536, "Frames waiting to be sent to one executor; at the limit calls are put off.")
    ] = 256
    coalesce_frames: Annotated[int, count(1, 4096, "Frames sent to an executor in one write.")] = 64
    inbox_frames: Annotated[
        int,
        count(1, 65_536, "Frames read from one executor and not yet handled; at the limit reading pauses."),
    ] = 1024

    def __post_init__(self) -> None:
        """Fill in the time-outs that follow from the call budget."""
        stall = self.scheduler_stall_timeout_ms
        if stall <= self.call_deadline_ms + STALL_MARGIN_MS:
            stall = self.call_deadline_ms + STALL_GRACE_MS
            force_setattr(self, "scheduler_stall_timeout_ms", stall)
        if self.heartbeat_timeout_ms == 0:
            force_setattr(self, "heartbeat_timeout_ms", max(MIN_HEARTBEAT_TIMEOUT_MS, stall + STALL_GRACE_MS))


class AdmissionSettings(Section, frozen=True, kw_only=True):
    """How many tasks may be in a stage at once; the others wait for their turn, which the task deadline limits."""

    builder_task_slots: Annotated[int, count(1, 65_536, "Tasks whose calls are being built.")] = 4
    executor_task_slots: Annotated[
        int, count(1, 65_536, "Tasks whose calls are running.", env="EXECUTOR_TASK_SLOTS")
    ] = 32
    plugin_task_slots: Annotated[int, count(1, 65_536, "Tasks whose results are being written.")] = 8
    scan_task_slots: Annotated[int, count(1, 65_536, "Tasks that read block tables.")] = 4


class StreamBuildSettings(Section, frozen=True, kw_only=True):
    """Builders that produce calls while earlier ones run."""

    enabled: Annotated[bool, word("Let builders that can stream do so.")] = True
    max_outstanding_batches: Annotated[
        int, count(1, 1024, "Batches of a task that are produced and not yet done.")
    ] = 2
    batch_max_rows: Annotated[int, count(1, 1_000_000, "Calls in one batch.")] = 8192
    batch_max_args_bytes: Annotated[int, size(KIB, GIB, "Arguments in one batch.")] = 32 * MIB


class RpcSettings(Section, frozen=True, kw_only=True):
    """Limits of the gRPC server."""

    max_request_bytes: Annotated[
        int, size(KIB, GIB, "Largest request; a larger one is refused at its header.")
    ] = 64 * MIB
    keepalive_time_ms: Annotated[
        int, ms(100, DAY_MS, "A silent connection is asked for a sign of life after this.")
    ] = 20_000
    keepalive_timeout_ms: Annotated[
        int, ms(100, DAY_MS, "A connection that gives none for so long is closed.")
    ] = 10_000
    max_connections: Annotated[
        int, count(1, 1_000_000, "Open connections, whatever they do; further ones are turned away.")
    ] = 512
    max_concurrent_streams: Annotated[
        int,
        count(1, 1_000_000, "Requests under way at once on one connection; clients hold back further ones."),
    ] = 100
    max_header_bytes: Annotated[
        int, size(KIB, MIB, "Headers of one request, each with 32 bytes more than its name and value.")
    ] = 16 * KIB
    handshake_timeout_ms: Annotated[
        int, ms(10, 600_000, "Longest time for TLS and the HTTP/2 greeting of a new connection.")
    ] = 10_000
    max_watch_ids: Annotated[int, count(1, 100_000, "Task ids in one WatchTasks request.")] = 1000
    max_wait_ms: Annotated[int, ms(0, DAY_MS, "Longest wait_ms of a SubmitTask request.")] = 600_000
    progress_interval_ms: Annotated[int, ms(10, 60_000, "Watchers hear of progress at most this often.")] = (
        250
    )
    output_segment_bytes: Annotated[
        int, size(KIB, 3 * MIB, "Size of the pieces that outputs are kept and sent in.")
    ] = MIB


class WriterSettings(Section, frozen=True, kw_only=True):
    """Writing results to databases."""

    allow_urls: Annotated[
        bool | None,
        word(
            "May tasks name a database by URL? Unset: only when the worker listens on loopback. Names in [targets] always work."
        ),
    ] = None
    sqlite_busy_timeout_ms: Annotated[
        int, ms(0, 600_000, "How long to wait for an SQLite file that another process has locked.")
    ] = 10_000
    batch_rows: Annotated[
        int,
        count(1, 1_000_000, "Rows of one transaction; a single block or output may have more."),
    ] = 10_000
    max_buffered_bytes: Annotated[
        int,
        size(
            MIB,
            1 << 40,
            "Outputs of one task that wait in memory for their block to be complete; above it the task fails.",
        ),
    ] = 256 * MIB
    postgres_connect_timeout_ms: Annotated[
        int,
        ms(2000, 600_000, "How long connecting to PostgreSQL may take, in whole seconds."),
    ] = 10_000
    postgres_statement_timeout_ms: Annotated[
        int, ms(0, DAY_MS, "How long one statement may take in PostgreSQL; 0 = no limit.")
    ] = 300_000
    postgres_lock_timeout_ms: Annotated[
        int, ms(0, DAY_MS, "How long a statement may wait for a lock in PostgreSQL; 0 = no limit.")
    ] = 30_000
    postgres_pool_size: Annotated[
        int, count(1, 1000, "Connections to one PostgreSQL database that write at once; tasks share them.")
    ] = 4


class LogSettings(Section, frozen=True, kw_only=True):
    """The worker's log, on stderr."""

    format: Annotated[LogFormat, word("auto: console on a terminal, else json.")] = "auto"
    level: Annotated[LogLevel, word("The least severe level that is written.")] = "info"
    user_lines_per_s: Annotated[
        int,
        count(
            0,
            1_000_000,
            "Lines printed by functions that are logged per second and executor; more are counted.",
        ),
    ] = 200


class Settings(Section, frozen=True, kw_only=True):
    """Settings of one worker; immutable, with every derived value filled in."""

    profile: Annotated[str, word("Deployment shape: block or bundle.", flag="--profile")] = "block"
    deployment: Annotated[str, word("Name of the deployment in the registry. Default: the profile's.")] = (
        "block"
    )
    worker_registry_prefix: Annotated[
        str, word("Start of the worker's key in etcd, from / to /. Default: the profile's.")
    ] = "/blockx/workers/block/"
    functions_dir: Annotated[
        str | None, path("Folder of the functions: modules and packages.", flag="--functions")
    ] = None
    blocks_dir: Annotated[
        str | None, path("Folder store of block tables, read by table tasks.", flag="--blocks")
    ] = None
    blocks_target: Annotated[
        str | None,
        word("Name in [targets] of the PostgreSQL database whose tables are read, instead of blocks_dir."),
    ] = None
    blocks_schema: Annotated[
        str | None, word("Schema of those tables. Unset: the first of the login's search path.")
    ] = None
    listen: Annotated[
        str, word("HOST:PORT of the gRPC server; port 0 picks a free one.", kind="address", flag="--listen")
    ] = "127.0.0.1:7420"
    advertise: Annotated[
        str | None,
        word("HOST:PORT under which clients reach the worker. Unset: listen.", kind="address"),
    ] = None
    insecure: Annotated[bool, word("Serve without encryption beyond loopback.", flag="--insecure")] = False
    tokens: Annotated[
        str | None,
        path("File of the tokens of which clients must show one. Unset: none is asked for.", flag="--tokens"),
    ] = None
    tokens_poll_ms: Annotated[int, ms(10, DAY_MS, "How often the tokens file is looked at for changes.")] = (
        1000
    )
    ready_file: Annotated[
        str | None, path("File that appears, complete, once the worker serves.", flag="--ready-file")
    ] = None
    task_slots: Annotated[int, count(1, 65_536, "Tasks that may be leased or running at once.")] = 64
    default_ttl_ms: Annotated[int, ms(1, DAY_MS, "Lease of a slot where the request names none.")] = 30_000
    max_ttl_ms: Annotated[int, ms(1, DAY_MS, "Longest lease of a slot.")] = 600_000
    default_timeout_ms: Annotated[
        int, ms(1, 30 * DAY_MS, "Time-out of a task where the request names none.")
    ] = 600_000
    max_timeout_ms: Annotated[int, ms(1, 30 * DAY_MS, "Longest time-out of a task.")] = DAY_MS
    result_retention_ms: Annotated[
        int, ms(0, 30 * DAY_MS, "How long results of ended tasks can be read.")
    ] = 600_000
    result_retention_bytes: Annotated[
        int, size(0, 1 << 50, "Memory for results of ended tasks; the oldest go first.")
    ] = GIB
    result_retention_count: Annotated[
        int, count(0, 10_000_000, "Number of results of ended tasks that are kept; the oldest go first.")
    ] = 10_000
    watch_disconnect_grace_ms: Annotated[
        int,
        ms(0, DAY_MS, "A task whose last owning watcher has gone is cancelled after this time; 0 = never."),
    ] = 30_000
    drain_timeout_ms: Annotated[
        int, ms(0, DAY_MS, "How long a stopping worker waits for its tasks before it cancels them.")
    ] = 20_000
    drain_linger_ms: Annotated[
        int, ms(0, 600_000, "How long watchers get to receive results after the last task has ended.")
    ] = 2000
    tick_ms: Annotated[int, ms(10, 10_000, "Interval of the periodic checks.")] = 500
    executor_count: Annotated[
        int,
        count(
            0,
            1024,
            "Executor processes. 0 = 8, or the CPUs that the worker may use if those are fewer.",
            env="EXECUTOR_COUNT",
            flag="--executors",
        ),
    ] = 0
    executor_spawn_mode: Annotated[
        Literal["process"], word("How executors are started.", env="EXECUTOR_SPAWN_MODE")
    ] = "process"
    executor_python: Annotated[
        str | None,
        word(
            "Interpreter of the executors: one that has blockx-executor and what the functions import. Unset: the worker's own."
        ),
    ] = None
    executor_share: Annotated[
        Literal["all", "instance", "task"],
        word(
            "Whose calls one executor process may run in its life: everybody's, those of one instance id, or those of one "
            "task. Keeps tenants apart, at the price of a new process for each."
        ),
    ] = "all"
    executor_env_allow: Annotated[
        list[str], word("Environment variables that executors inherit; all others are withheld.")
    ] = msgspec.field(default_factory=lambda: list(DEFAULT_ENV_ALLOW))
    executor_restart_delay_ms: Annotated[int, ms(0, 600_000, "Pause before a lost executor is replaced.")] = (
        1000
    )
    executor_max_restarts: Annotated[
        int,
        count(0, 10_000, "Restarts of one executor within executor_restart_window_ms before it backs off."),
    ] = 10
    executor_restart_window_ms: Annotated[int, ms(1, DAY_MS, "Window in which restarts are counted.")] = (
        60_000
    )
    executor_backoff_ms: Annotated[int, ms(0, DAY_MS, "Pause after too many restarts.")] = 30_000
    executor_start_timeout_ms: Annotated[
        int, ms(100, 600_000, "An executor that has not reported for so long after its start is killed.")
    ] = 30_000
    executor_stop_timeout_ms: Annotated[
        int, ms(0, 600_000, "An executor that has not ended for so long after SIGTERM is killed.")
    ] = 2000
    default_max_attempts: Annotated[
        int, count(1, 100, "Attempts of a call where the task names none.", env="CALL_RETRY_MAX_ATTEMPTS")
    ] = 3
    writer_commit_timeout_ms: Annotated[
        int, ms(1, DAY_MS, "How long the end of a task waits for a commit that has begun.")
    ] = 30_000
    function_load_timeout_ms: Annotated[
        int, ms(100, DAY_MS, "How long an executor may take to compile and import a function's code.")
    ] = 60_000
    functions_allow_list: Annotated[
        str | None,
        path(
            "File with the digests of audited code, one a line; # begins a comment. Other code does not run. `blockx functions "
            "list --digests` prints such lines; changes count for new tasks. Unset: all code runs."
        ),
    ] = None
    functions_poll_ms: Annotated[
        int, ms(10, DAY_MS, "How often the functions folder and the allow list are looked at for changes.")
    ] = 1000
    runtime_dir: Annotated[
        str | None,
        path(
            "Where socket directories live. Unset: a private folder under the system's temporary directory."
        ),
    ] = None
    dispatcher: DispatcherSettings = DispatcherSettings()
    admission: AdmissionSettings = AdmissionSettings()
    stream_build: StreamBuildSettings = StreamBuildSettings()
    rpc: RpcSettings = RpcSettings()
    writers: WriterSettings = WriterSettings()
    tls: TlsSettings = TlsSettings()
    io: IoSettings = IoSettings()
    etcd: EtcdSettings = EtcdSettings()
    shadow: ShadowSettings = ShadowSettings()
    targets: Annotated[
        dict[str, str],
        word(
            "Databases that tasks may write to: NAME = URL (sqlite:///FILE or postgresql://…).",
            kind="targets",
        ),
    ] = msgspec.field(default_factory=dict)
    extensions: Annotated[
        dict[str, dict[str, Any]],
        word(
            "Extensions to use: [extensions.NAME], whose keys the extension reads itself. A section may be empty.",
            kind="extensions",
        ),
    ] = msgspec.field(default_factory=dict)
    extensions_enabled: Annotated[
        list[str], word("Further extensions to use: names of those that need no section.")
    ] = msgspec.field(default_factory=list)
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        """Fill in what depends on this machine and this interpreter."""
        if self.executor_count == 0:
            force_setattr(self, "executor_count", min(8, usable_cpus()))
        if self.executor_python is None:
            force_setattr(self, "executor_python", sys.executable)

    @property
    def urls_allowed(self) -> bool:
        """May tasks name a database by URL."""
        if self.writers.allow_urls is not None:
            return self.writers.allow_urls
        return is_loopback(parse_address(self.listen)[0])
