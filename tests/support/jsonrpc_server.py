"""A real JSON-RPC 2.0 server over HTTP/1.1 on a local port, for tests, in threads of its own.

Its manner can change while it runs: it answers late, refuses batches, answers with another status or body, forgets
answers, cuts connections; it can be stopped (which cuts every connection) and started again on the same port.

`python -m tests.support.jsonrpc_server PORT DELAY_MS` runs one by itself.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

__all__ = ["JsonRpcServer", "RpcFailure"]


class RpcFailure(Exception):
    """A method answers with an error object."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message} | ({} if data is None else {"data": data})


Answer = Callable[[str, Any], Any]


def echo(method: str, params: Any) -> Any:
    """What the server answers unless a test says otherwise."""
    return {"method": method, "params": params}


class JsonRpcServer:
    """Use as a context manager. ``answer(method, params)`` returns the result or raises `RpcFailure`.

    `calls` counts calls by (method, JSON text of the params), `posts` has the number of calls in each HTTP request.
    `script` holds callables that each answer one HTTP request, given its body, with (status, headers, body bytes), or
    with None to cut the connection; when it is empty the server answers well.
    """

    def __init__(self, answer: Answer = echo, *, delay_s: float = 0.0, takes_batches: bool = True) -> None:
        self.answer = answer
        self.delay_s = delay_s
        self.takes_batches = takes_batches
        self.calls: Counter[tuple[str, str]] = Counter()
        self.posts: list[int] = []
        self.headers: list[dict[str, str]] = []
        self.script: list[Callable[[Any], tuple[int, dict[str, str], bytes] | None]] = []
        self.port = 0
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where it listens, also while it is stopped."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen; on the same port as before, if there was one."""
        self._server = _Server(("127.0.0.1", self.port), _handler(self))
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening and cut all connections; harmless when done before."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server.cut_all()
        self._thread.join()
        self._server = None

    def respond(self, body: Any) -> tuple[int, dict[str, str], bytes] | None:
        """Status, headers and body for a request; None cuts the connection."""
        several = isinstance(body, list)
        calls = body if several else [body]
        with self._lock:
            self.posts.append(len(calls))
            self.calls.update((c["method"], json.dumps(c["params"])) for c in calls)
            scripted = self.script.pop(0) if self.script else None
        if self.delay_s:
            time.sleep(self.delay_s)
        if scripted is not None:
            return scripted(body)
        if several and not self.takes_batches:
            error = {"code": -32600, "message": "batches are not supported"}
            return 200, {}, _text({"jsonrpc": "2.0", "id": None, "error": error})
        answers = [self._call(call) for call in calls]
        return 200, {}, _text(answers if several else answers[0])

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"jsonrpc": "2.0", "id": call["id"], "result": self.answer(call["method"], call["params"])}
        except RpcFailure as failure:
            return {"jsonrpc": "2.0", "id": call["id"], "error": failure.error}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news."""

    def cut_all(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _handler(server: JsonRpcServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.headers.append({key.lower(): value for key, value in self.headers.items()})
            reply = server.respond(body)
            if reply is None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, headers, text = reply
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: Any) -> None:
            """Quiet."""

    return Handler


def _text(value: Any) -> bytes:
    return json.dumps(value).encode()


if __name__ == "__main__":
    running = JsonRpcServer(delay_s=int(sys.argv[2]) / 1000)
    running.port = int(sys.argv[1])
    running.start()
    print(running.url, flush=True)
    threading.Event().wait()
