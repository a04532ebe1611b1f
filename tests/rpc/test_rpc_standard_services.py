"""Health and reflection, seen by the official clients."""

from __future__ import annotations

import grpc
import pytest
import trio
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.rpc.fakes import FakeWorkerApi
from tests.rpc.serving import RPCS, Official, serving, status_of, with_official

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("service", ["", "blockx.worker.v1.WorkerService"])
async def test_health_follows_the_worker(service: str) -> None:
    api = FakeWorkerApi()

    def use(client: Official) -> None:
        health = health_pb2_grpc.HealthStub(client.channel)
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request, timeout=10).status == SERVING
        watch = health.Watch(request, timeout=30)
        assert next(watch).status == SERVING
        api.is_serving = False
        assert next(watch).status == NOT_SERVING
        assert health.Check(request, timeout=10).status == NOT_SERVING
        api.is_serving = True
        assert next(watch).status == SERVING
        watch.cancel()

    async with serving(api, health_poll_s=0.01) as address:
        await with_official(address, use)


async def test_health_of_an_unknown_service() -> None:
    def use(client: Official) -> None:
        health = health_pb2_grpc.HealthStub(client.channel)
        request = health_pb2.HealthCheckRequest(service="coffee")
        status, text = status_of(lambda: health.Check(request, timeout=10))
        assert status is grpc.StatusCode.NOT_FOUND
        assert "'coffee'" in text
        watch = health.Watch(request, timeout=30)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()

    async with serving(FakeWorkerApi()) as address:
        await with_official(address, use)


async def test_reflection_lists_and_describes_every_service() -> None:
    def use(client: Official) -> None:
        database = ProtoReflectionDescriptorDatabase(client.channel)
        assert sorted(database.get_services()) == [
            "blockx.worker.v1.WorkerService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ]
        pool = DescriptorPool(database)
        worker = pool.FindServiceByName("blockx.worker.v1.WorkerService")
        assert [method.name for method in worker.methods] == list(RPCS)
        assert pool.FindMessageTypeByName("blockx.worker.v1.TaskEvent").oneofs_by_name["event"]
        assert pool.FindServiceByName("grpc.health.v1.Health").methods_by_name["Watch"]
        assert pool.FindFileByName("blockx/worker/v1/worker.proto").package == "blockx.worker.v1"
        with pytest.raises(KeyError):
            pool.FindMessageTypeByName("blockx.worker.v1.Coffee")

    async with serving(FakeWorkerApi()) as address:
        await with_official(address, use)


async def test_reflection_answers_one_question_after_another() -> None:
    questions = [
        reflection_pb2.ServerReflectionRequest(all_extension_numbers_of_type="blockx.worker.v1.TaskEvent"),
        reflection_pb2.ServerReflectionRequest(all_extension_numbers_of_type="no.Such"),
        reflection_pb2.ServerReflectionRequest(file_by_filename="no/such.proto"),
        reflection_pb2.ServerReflectionRequest(
            file_containing_extension=reflection_pb2.ExtensionRequest(containing_type="x", extension_number=1)
        ),
        reflection_pb2.ServerReflectionRequest(),
    ]

    def use(client: Official) -> list[str]:
        stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        answers = list(stub.ServerReflectionInfo(iter(questions), timeout=10))
        return [
            answer.all_extension_numbers_response.base_type_name or answer.error_response.error_message
            for answer in answers
        ]

    async with serving(FakeWorkerApi()) as address:
        assert await with_official(address, use) == [
            "blockx.worker.v1.TaskEvent",
            "no message type 'no.Such' here",
            "nothing of the name 'no/such.proto' here",
            "no extensions are declared here",
            "the request asks nothing; set one of message_request",
        ]
        await trio.lowlevel.checkpoint()
