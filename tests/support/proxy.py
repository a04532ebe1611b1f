"""A TCP proxy in threads that can fall silent: what a client behind a broken network looks like to a server."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

__all__ = ["SilentProxy"]


class SilentProxy:
    """Forwards to ``address`` until `fall_silent`: then bytes vanish both ways while every connection stays open."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._silent = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((host, 0))
        self.address = "{}:{}".format(*self._listener.getsockname()[:2])

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._listener)
        self._threads[0].join()
        for sock in self._sockets:
            _shut(sock)
        for thread in self._threads[1:]:
            thread.join()

    def fall_silent(self) -> None:
        """Drop everything from now on, new connections' bytes included."""
        self._silent.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # shut
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                self._start(self._forward, client, server)
                self._start(self._forward, server, client)

    def _start(self, target: object, *args: socket.socket) -> None:
        thread = threading.Thread(target=target, args=args)  # type: ignore[arg-type]  # any of the two methods
        self._threads.append(thread)
        thread.start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # shut
            while data := source.recv(65_536):
                if not self._silent.is_set():
                    target.sendall(data)
            if not self._silent.is_set():
                target.shutdown(socket.SHUT_WR)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not connected any more
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
