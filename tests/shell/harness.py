"""A whole worker on fakes: everything between the API and the executors' wire is real."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import trio

from blockx_worker.assembly import Surroundings, Worker, assemble
from blockx_worker.builders.registry import BuilderRegistry
from blockx_worker.config.settings import Settings
from blockx_worker.functions.static import StaticFunctionProvider
from blockx_worker.model.tasks import TaskRequest, TaskState, TypedConfig
from blockx_worker.model.watch import TaskOutputs, TaskResulted
from blockx_worker.plugins.registry import PluginRegistry
from blockx_worker.services import ServiceStack
from tests.shell.fakes import FakeClock, FakeExecutors, FakeIo, FakeThreads, wait_for

SOURCE = "\n".join(
    f"def {name}(*args): ..."
    for name in (
        "double",
        "fail",
        "hang",
        "odd_fails",
        "echo",
        "nap",
        "ask",
        "sum_to",
        "calls_nothing",
    )
)


@attrs.frozen
class Harness:
    worker: Worker
    executors: FakeExecutors
    services: ServiceStack

    @property
    def api(self):
        return self.worker.api

    @property
    def door(self):
        return self.worker.orchestrator.door

    async def run(self, request: TaskRequest):
        """Submit, wait for the end; (result, outputs)."""
        await self.api.submit_task(request)
        return await self.ended(request.task_id)

    async def ended(self, task_id: str):
        """Observe a task to its end; (result, outputs)."""
        text = b""
        async with self.api.watch([task_id], observe=True) as cursor:
            while (events := await cursor.next()) is not None:
                for event in events:
                    if isinstance(event, TaskOutputs):
                        text += event.chunk.json_lines
                    elif isinstance(event, TaskResulted):
                        result = event.result
        return result, [json.loads(line) for line in text.splitlines()]


async def _hang():
    await trio.sleep_forever()


def _fail(*_):
    raise ValueError("no luck")


def _odd_fails(number):
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


async def _nap(seconds, value):
    await trio.sleep(seconds)
    return value


async def _ask(question):
    return await wait_for("io", backend="oracle", op="ask", request={"question": question})


async def _sum_to(number):
    """Calls itself down to 0."""
    if number == 0:
        return 0
    below = await wait_for("subcall", function_id="functions.sum_to", args=[number - 1])
    return number + below


async def _calls_nothing():
    return await wait_for("subcall", function_id="functions.nothing", args=[])


BEHAVIOURS: dict[str, Callable[..., Any]] = {
    "functions.double": lambda number: number * 2,
    "functions.fail": _fail,
    "functions.hang": _hang,
    "functions.odd_fails": _odd_fails,
    "functions.echo": lambda value: value,
    "functions.nap": _nap,
    "functions.ask": _ask,
    "functions.sum_to": _sum_to,
    "functions.calls_nothing": _calls_nothing,
}


def settings(**changes) -> Settings:
    """Small and quick; ``changes`` as a configuration file would have them."""
    return msgspec.convert({"executor_count": 2, "executor_restart_delay_ms": 10, **changes}, Settings)


@asynccontextmanager
async def running_worker(builders, plugins, *, io=None, **changes):
    """Run a worker on fakes; ``builders`` and ``plugins`` are lists of parts."""
    async with trio.open_nursery() as nursery:
        executors = FakeExecutors(nursery, BEHAVIOURS)
        worker = assemble(
            settings(**changes),
            Surroundings(
                threads=FakeThreads(),
                clock=FakeClock(),
                spawner=executors,
                places=executors,
                functions=StaticFunctionProvider({"functions.py": SOURCE}),
                io=io or FakeIo(),
                builders=BuilderRegistry(builders),
                plugins=PluginRegistry(plugins),
                jitter=lambda: 0.0,
            ),
            check=True,
        )
        services = ServiceStack(nursery)
        await services.start("orchestrator", worker.orchestrator.run)
        await services.start("executors", worker.supervisor.run)
        await services.start("tick", worker.tick)
        yield Harness(worker, executors, services)
        await services.stop_all()
        nursery.cancel_scope.cancel()


def call_task(
    task_id, function, args_list, *, handler="ReturnValueResultHandler", config=b"{}", **fields
) -> TaskRequest:
    """A task of a call list."""
    body = {"functionId": f"functions.{function}", "argsList": args_list}
    return TaskRequest(
        task_id=task_id,
        function_call_config=TypedConfig("CallListCallConfig", json.dumps(body).encode()),
        result_handler=TypedConfig(handler, config) if handler else None,
        **{"timeout_ms": 60_000, **fields},
    )


__all__ = ["Harness", "TaskState", "call_task", "running_worker", "settings"]
