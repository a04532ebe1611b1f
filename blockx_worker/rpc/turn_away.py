"""Telling a client that it is not served here: a connection that answers every request with one refusal.

gRPC clients take a connection that just closes, or says GOAWAY, for bad luck and try again without end; only a status
reaches whoever made the request. So this speaks enough HTTP/2 to send one.
"""

from __future__ import annotations

import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from h2.exceptions import ProtocolError

from blockx_worker.model.errors import WorkerError
from blockx_worker.rpc.refusals import refusal_headers

__all__ = ["turn_away"]

PATIENCE_S = 1.0
"""How long a client may take to make its request and to read the answer."""


async def turn_away(stream: trio.SocketStream, refusal: WorkerError) -> None:
    """Answer what comes within `PATIENCE_S` with ``refusal``. A client that speaks no HTTP/2 gets what it cannot read."""
    connection = H2Connection(H2Configuration(client_side=False, header_encoding="ascii"))
    connection.initiate_connection()
    try:
        with trio.move_on_after(PATIENCE_S):
            await stream.send_all(connection.data_to_send())
            while data := await stream.receive_some():
                _answer(connection, data, refusal)
                await stream.send_all(connection.data_to_send())
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


def _answer(connection: H2Connection, data: bytes, refusal: WorkerError) -> None:
    try:
        for event in connection.receive_data(data):
            if isinstance(event, RequestReceived):
                connection.send_headers(event.stream_id, refusal_headers(refusal), end_stream=True)
    except ProtocolError:
        return  # of ours, or it is over: the bytes to send say so
