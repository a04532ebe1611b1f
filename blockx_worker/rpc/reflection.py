"""Server reflection in both versions that clients ask for, answered from the committed descriptor set.

The two versions differ in their package name alone, so one implementation serves both generated modules. No served
file imports another or declares extensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import betterproto
from google.protobuf.descriptor import FileDescriptor
from grpclib.const import Cardinality, Status
from grpclib.server import Stream

from blockx_worker.rpc.boundary import Requests, Service, handler
from blockx_worker.rpc.descriptors import descriptor_pool
from blockx_worker.rpc.pb.grpc.reflection import v1, v1alpha
from blockx_worker.rpc.receive import receive_or_end
from blockx_worker.security.tokens import Scope

__all__ = ["REFLECTION_SERVICES", "reflection_services"]

_VERSIONS: dict[str, Any] = {
    "grpc.reflection.v1.ServerReflection": v1,
    "grpc.reflection.v1alpha.ServerReflection": v1alpha,
}
REFLECTION_SERVICES = tuple(_VERSIONS)


def reflection_services(service_names: Sequence[str], max_bytes: int, running: Requests) -> list[Service]:
    """Reflection that lists ``service_names``."""
    return [
        Service(name, {"ServerReflectionInfo": _method(_Reflection(pb, service_names, max_bytes), running)})
        for name, pb in _VERSIONS.items()
    ]


def _method(reflection: _Reflection, running: Requests) -> Any:
    pb = reflection.pb
    return handler(
        reflection.answer_all,
        running,
        Cardinality.STREAM_STREAM,
        pb.ServerReflectionRequest,
        pb.ServerReflectionResponse,
        admit=partial(running.gate.admit, scope=Scope.READ),
    )


@attrs.frozen
class _Reflection:
    pb: Any
    _service_names: Sequence[str]
    _max_bytes: int

    async def answer_all(self, stream: Stream[Any, Any]) -> None:
        while (request := await receive_or_end(stream, self._max_bytes)) is not None:
            answer = self._answer(*betterproto.which_one_of(request, "message_request"))
            answer.valid_host = request.host
            answer.original_request = request
            await stream.send_message(answer)

    def _answer(self, question: str, value: Any) -> Any:
        pool = descriptor_pool()
        match question:
            case "list_services":
                return self._services()
            case "file_by_filename":
                return self._file(pool.FindFileByName, value)
            case "file_containing_symbol":
                return self._file(pool.FindFileContainingSymbol, value)
            case "file_containing_extension":
                return self._error(Status.NOT_FOUND, "no extensions are declared here")
            case "all_extension_numbers_of_type":
                return self._extension_numbers(value)
            case _:
                return self._error(
                    Status.INVALID_ARGUMENT, "the request asks nothing; set one of message_request"
                )

    def _services(self) -> Any:
        services = [self.pb.ServiceResponse(name=name) for name in self._service_names]
        return self.pb.ServerReflectionResponse(
            list_services_response=self.pb.ListServiceResponse(service=services)
        )

    def _file(self, find: Callable[[str], FileDescriptor], name: str) -> Any:
        try:
            file = find(name)
        except KeyError:
            return self._error(Status.NOT_FOUND, f"nothing of the name {name[:100]!r} here")
        return self.pb.ServerReflectionResponse(
            file_descriptor_response=self.pb.FileDescriptorResponse(
                file_descriptor_proto=[file.serialized_pb]
            )
        )

    def _extension_numbers(self, name: str) -> Any:
        try:
            descriptor_pool().FindMessageTypeByName(name)
        except KeyError:
            return self._error(Status.NOT_FOUND, f"no message type {name[:100]!r} here")
        return self.pb.ServerReflectionResponse(
            all_extension_numbers_response=self.pb.ExtensionNumberResponse(base_type_name=name)
        )

    def _error(self, status: Status, message: str) -> Any:
        return self.pb.ServerReflectionResponse(
            error_response=self.pb.ErrorResponse(error_code=status.value, error_message=message)
        )
