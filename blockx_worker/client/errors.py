"""How a request can fail: refused by the worker (`WorkerError`), not answered, or answered with something else."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.exceptions import ProtocolError

from blockx_worker.rpc.errors import to_worker_error
from blockx_worker.security.tls_words import seen_by_client

__all__ = ["NoWorker", "RequestFailed", "TlsFailed", "WorkerUnreachable", "translated"]


class WorkerUnreachable(Exception):
    """No worker answers at the address, or the connection to it broke."""

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(f"no worker reachable at {address}: {detail}")
        self.address = address
        self.detail = detail


class TlsFailed(WorkerUnreachable):
    """Client and worker cannot agree on a secret connection; trying again does not help."""


class NoWorker(WorkerUnreachable):
    """A directory has no worker that can be reached and takes the task. ``address`` names the registry."""

    def __init__(self, registry: str, detail: str) -> None:
        super().__init__(registry, detail)
        self.args = (f"no worker to be had through {registry}: {detail}",)


class RequestFailed(Exception):
    """The answer was a gRPC status that is not one of the worker's refusals, such as INTERNAL."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Turn what grpclib raises into the three errors of this client."""
    try:
        yield
    except GRPCError as error:
        raise _from_status(address, error) from None
    except ssl.SSLError as error:
        raise TlsFailed(address, seen_by_client(error)) from None
    except TimeoutError as error:
        raise WorkerUnreachable(address, str(error) or "no answer in time") from None
    except (StreamTerminatedError, OSError, ProtocolError) as error:
        raise WorkerUnreachable(address, str(error) or type(error).__name__) from None


def _from_status(address: str, error: GRPCError) -> Exception:
    refusal = to_worker_error(error.message)
    if refusal is not None:
        return refusal
    if error.status is Status.UNAVAILABLE:
        return WorkerUnreachable(address, error.message or "unavailable")
    return RequestFailed(error.status.name, error.message or "no message")
