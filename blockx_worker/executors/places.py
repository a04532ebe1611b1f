"""Private directories of executor processes under the worker's runtime directory.

Layout: ``<root>/<worker>/<executor>/{socket,blackbox}``, all 0700. The worker's directory is locked while the worker
lives, so that the next start can tell a stale directory (a worker killed with SIGKILL) from one in use.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import tempfile
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Self

import trio

from blockx_executor.wire.blackbox import BLACKBOX_BYTES

__all__ = ["RuntimeDirectory", "UnixPlace"]

_LOCK_NAME = "lock"
_UCRED = struct.Struct("3i")
_MAX_SOCKET_PATH = 107  # bytes of sockaddr_un.sun_path less the final NUL


class RuntimeDirectory:
    """The worker's own directory; use as a context manager."""

    def __init__(self, root: str | None = None) -> None:
        """``root``: where worker directories live; None = a per-user directory under the system's temporary one."""
        self._root = Path(root) if root else Path(tempfile.gettempdir()) / f"blockx-{os.getuid()}"
        self._lock_fd = -1
        self.path = Path()

    def __enter__(self) -> Self:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(self._root)
        self.removed = _remove_stale(self._root)
        self.path = Path(tempfile.mkdtemp(prefix="w", dir=self._root))
        self._lock_fd = os.open(self.path / _LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock_fd)

    def make(self, name: str) -> UnixPlace:
        """A fresh directory for one executor process."""
        path = self.path / name
        path.mkdir(mode=0o700)
        return UnixPlace(path)


class UnixPlace:
    """The directory of one executor process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.socket_path = str(path / "socket")
        self.blackbox_path = str(path / "blackbox")
        if len(os.fsencode(self.socket_path)) > _MAX_SOCKET_PATH:
            raise OSError(
                f"the socket path {self.socket_path} is longer than {_MAX_SOCKET_PATH} bytes: set a shorter runtime_dir"
            )
        self._page = _make_page(self.blackbox_path)
        self._pid: int | None = None

    def listen(self) -> UnixListener:
        """Listen on this place's socket."""
        return UnixListener(self)

    def expect_pid(self, pid: int) -> None:
        """Accept only this process from now on."""
        self._pid = pid

    def admits(self, pid: int, uid: int) -> bool:
        """Whether a peer is the process that we started (or, where it is not known, one of our user)."""
        return uid == os.getuid() and self._pid in (None, pid)

    def read_blackbox(self) -> bytes:
        """The page as it stands."""
        return self._page[:]

    def remove(self) -> None:
        """Remove the directory."""
        self._page.close()
        shutil.rmtree(self._path, ignore_errors=True)


class UnixListener:
    """Listens for one connection of the right process."""

    def __init__(self, place: UnixPlace) -> None:
        self._place = place
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._socket.bind(place.socket_path)
        self._socket.listen(1)

    async def accept(self) -> trio.abc.Stream:
        """The executor's connection."""
        listening = trio.socket.from_stdlib_socket(self._socket)
        while True:
            peer, _ = await listening.accept()
            pid, uid, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
            if self._place.admits(pid, uid):
                return trio.SocketStream(peer)
            peer.close()

    def close(self) -> None:
        """Stop listening and unlink the socket."""
        self._socket.close()
        Path(self._place.socket_path).unlink(missing_ok=True)


def _make_page(path: str) -> mmap:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, BLACKBOX_BYTES)
        return mmap(fd, BLACKBOX_BYTES, access=ACCESS_READ)
    finally:
        os.close(fd)


def _check_owner(root: Path) -> None:
    if root.stat().st_uid != os.getuid():
        raise OSError(f"{root} belongs to another user: set runtime_dir to a directory of your own")


def _remove_stale(root: Path) -> list[Path]:
    """Remove directories of workers that no longer live: those whose lock nobody holds."""
    removed = []
    for path in sorted(root.glob("w*")):
        try:
            fd = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # being made or being removed right now
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
        finally:
            os.close(fd)
    return removed
