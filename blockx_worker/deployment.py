"""What a deployment offers its tasks: functions, block tables, builders, writers and back ends, its extensions included.

A builder or writer that the profile does not list does not exist for its tasks; extensions are named in the settings
and need no profile.
"""

from __future__ import annotations

from blockx_worker.assembly import Surroundings, make_spawner
from blockx_worker.builders.block_table import BlockTableBuilder
from blockx_worker.builders.call_list import CallListBuilder
from blockx_worker.builders.registry import BuilderRegistry
from blockx_worker.config.settings import Settings
from blockx_worker.extensions import ExtensionServices, load_extensions
from blockx_worker.functions.audit import AllowListFile
from blockx_worker.functions.directory import DirectoryFunctionProvider
from blockx_worker.functions.static import StaticFunctionProvider
from blockx_worker.io.folder import FolderBlockStore
from blockx_worker.io.make import make_io
from blockx_worker.io.postgres import PostgresLimits
from blockx_worker.io.postgres_store import PostgresBlockStore
from blockx_worker.plugins.block_write import BlockWritePlugin
from blockx_worker.plugins.registry import PluginRegistry
from blockx_worker.plugins.return_value import ReturnValuePlugin
from blockx_worker.plugins.targets import Targets
from blockx_worker.ports import BlockStore, CallBuilder, ExecutorPlaces, FunctionProvider, WriterPlugin
from blockx_worker.profiles import PROFILES
from blockx_worker.surroundings import SystemClock, WorkerThreads

__all__ = ["surroundings_of"]


def surroundings_of(settings: Settings, places: ExecutorPlaces) -> Surroundings:
    """The real surroundings of a worker. ConfigError for a broken extension, OSError for a folder that is not there."""
    threads = WorkerThreads()
    store = _block_store(settings)
    extensions = load_extensions(settings, ExtensionServices(threads=threads, block_store=store))
    return Surroundings(
        threads=threads,
        clock=SystemClock(),
        spawner=make_spawner(settings),
        places=places,
        functions=_functions(settings, threads),
        io=make_io(settings, threads, {} if store is None else {"blockdb": store}, extensions.backends),
        builders=BuilderRegistry([*_builders(settings, store), *extensions.builders]),
        plugins=PluginRegistry([*_plugins(settings), *extensions.writers]),
    )


def _block_store(settings: Settings) -> BlockStore | None:
    if settings.blocks_target is not None:
        return PostgresBlockStore(
            settings.targets[settings.blocks_target],
            schema=settings.blocks_schema,
            limits=_postgres(settings),
        )
    return None if settings.blocks_dir is None else FolderBlockStore(settings.blocks_dir)


def _builders(settings: Settings, store: BlockStore | None) -> list[CallBuilder]:
    offered = PROFILES[settings.profile].builders
    parts: list[CallBuilder] = [CallListBuilder(), BlockTableBuilder(store)]
    return [part for part in parts if part.type in offered]


def _plugins(settings: Settings) -> list[WriterPlugin]:
    offered = PROFILES[settings.profile].plugins
    writer = BlockWritePlugin(
        Targets(settings.targets, allow_urls=settings.urls_allowed),
        busy_timeout_ms=settings.writers.sqlite_busy_timeout_ms,
        batch_rows=settings.writers.batch_rows,
        max_buffered_bytes=settings.writers.max_buffered_bytes,
        postgres=_postgres(settings),
    )
    parts: list[WriterPlugin] = [ReturnValuePlugin(), writer]
    return [part for part in parts if part.type in offered]


def _postgres(settings: Settings) -> PostgresLimits:
    writers = settings.writers
    return PostgresLimits(
        connect_timeout_ms=writers.postgres_connect_timeout_ms,
        statement_timeout_ms=writers.postgres_statement_timeout_ms,
        lock_timeout_ms=writers.postgres_lock_timeout_ms,
        pool_size=writers.postgres_pool_size,
    )


def _functions(settings: Settings, threads: WorkerThreads) -> FunctionProvider:
    if settings.functions_dir is None:
        return StaticFunctionProvider({})
    allow_list = settings.functions_allow_list
    return DirectoryFunctionProvider(
        settings.functions_dir,
        threads,
        poll_interval_ms=settings.functions_poll_ms,
        audited=AllowListFile(allow_list) if allow_list is not None else None,
    )
