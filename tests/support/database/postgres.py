"""The PostgreSQL of the tests: one server for a whole run, one fresh database for each test that needs it."""

import asyncio
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import asyncpg

from controller.store.embedded import EmbeddedPostgres

URL_VARIABLE = "GPUWARD_TEST_DATABASE_URL"
_STATEMENT_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 180.0
_REMOVALS, _REMOVAL_S = 20, 0.1

_PREFIX = "gpuward-test-"
_LOCK = "lock"
_MEMORY = Path("/dev/shm")  # noqa: S108 - as a folder in memory
_ROOM_BYTES = 2 * 2**30

# Tests discard their data, so nothing must reach the disk.
_FOR_SPEED = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "max_wal_size": "128MB",
    "min_wal_size": "32MB",
}


@dataclass(frozen=True)
class PostgresServer:
    """A running server; `dsn` names a database from which others can be created."""

    dsn: str

    def database_dsn(self, name: str) -> str:
        parts = urllib.parse.urlsplit(self.dsn)
        # By hand: without a host, `geturl` would drop the empty authority.
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{parts.netloc}/{name}{query}"


@contextmanager
def reachable_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder that the database's account can enter, unlike pytest's own temporary folders."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """A server whose controller was killed removes files of its own until it has ended."""
    for _ in range(_REMOVALS):
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)
        if not folder.exists():
            return
        time.sleep(_REMOVAL_S)
    shutil.rmtree(folder)


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Likewise, empty, and in memory where the host lets us."""
    with _folder_in_memory() as parent:
        folder = parent / "data"
        folder.mkdir()
        folder.chmod(0o711)
        yield folder


@contextmanager
def _folder_in_memory() -> Iterator[Path]:
    """Likewise, in memory where the host lets us: a test's database is many small files, and disks are slow at them.

    A run that was killed leaves its folder. The next one removes it, since no process holds its lock any more.
    """
    if not _has_room(_MEMORY):
        with reachable_folder() as folder:
            yield folder
        return
    for left in _MEMORY.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), left.open() as lock:  # BlockingIOError: it is in use
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(left.parent)
    folder, lock = _locked_folder()
    with lock:  # until the folder is gone: others remove what no process holds
        try:
            yield folder
        finally:
            _remove(folder)


def _locked_folder() -> tuple[Path, TextIO]:
    """A new folder in memory with our lock in it; one that another run removed before we held its lock is given up."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY))
        folder.chmod(0o711)
        lock = (folder / _LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock.fileno()).st_nlink > 0:
            return folder, lock
        lock.close()


def _has_room(folder: Path) -> bool:
    """Whether a server may lie there: programs too, where its account cannot reach ours."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    free = found.f_bavail * found.f_frsize
    return free >= _ROOM_BYTES and not found.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK | os.X_OK)


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """The server that `GPUWARD_TEST_DATABASE_URL` names, else an embedded one for the time of the context."""
    url = os.environ.get(URL_VARIABLE)
    if url:
        yield PostgresServer(url)
        return
    with _folder_in_memory() as folder, _served(folder) as dsn:
        yield PostgresServer(dsn)


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Runs the embedded server in a thread with its own loop, since every test has its own."""
    started: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        done = asyncio.Event()
        async with EmbeddedPostgres(folder, extra_settings=_FOR_SPEED) as server:
            started.set_result((server.dsn, asyncio.get_running_loop(), done))
            await done.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=run, name="test-postgres")
    thread.start()
    try:
        dsn, loop, done = started.result(timeout=_START_TIMEOUT_S)
        try:
            yield dsn
        finally:
            loop.call_soon_threadsafe(done.set)
    finally:
        thread.join()


async def create_database(server: PostgresServer, template: str | None = None) -> str:
    """Creates a database with a new name; returns its dsn.

    Args:
        server: where.
        template: the database to copy, which must have no connections; an empty one by default.
    """
    name = f"test_{secrets.token_hex(6)}"
    # Copied by file, a small database is created and dropped in about two thirds of the time.
    source = f' TEMPLATE "{template}" STRATEGY file_copy' if template else ""
    await _execute(server.dsn, f'CREATE DATABASE "{name}"{source}')
    return server.database_dsn(name)


async def drop_database(server: PostgresServer, dsn: str) -> None:
    """Drops a database that `create_database` made, whatever is still connected to it.

    The server's own vacuum may be connected too. Only its owner may end it; in so small a database it ends soon.
    """
    name = urllib.parse.urlsplit(dsn).path.removeprefix("/")
    async with asyncio.timeout(_STATEMENT_TIMEOUT_S):
        while True:
            try:
                await _execute(server.dsn, f'DROP DATABASE "{name}" WITH (FORCE)')
            except asyncpg.InsufficientPrivilegeError:
                await asyncio.sleep(0.1)
            else:
                return


async def _execute(dsn: str, statement: str) -> None:
    async with asyncio.timeout(_STATEMENT_TIMEOUT_S):
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@dataclass(frozen=True)
class Holder:
    """Another process that runs an embedded server; `pid` is the server's."""

    process: subprocess.Popen[str]
    pid: int
    dsn: str

    def kill(self) -> None:
        """Kills that process, not the server, as a crash would."""
        self.process.kill()
        self.process.wait()


@contextmanager
def holding(data_dir: Path, uid: int | None = None, python: str = sys.executable) -> Iterator[Holder]:
    """Runs an embedded server in another process, as the given user if any."""
    script = Path(__file__).with_name("postgres_holder.py")
    with subprocess.Popen(
        [python, str(script), str(data_dir)],
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
        env=_with_our_modules(),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            answer = json.loads(process.stdout.readline())  # type: ignore[union-attr]  # it is a pipe
            if "error" in answer:
                raise RuntimeError(answer["error"])
            yield Holder(process, answer["pid"], answer["dsn"])
            process.stdin.close()  # type: ignore[union-attr]  # as above
            process.wait(timeout=30)
        finally:
            process.kill()


def python_for(uid: int) -> str | None:
    """An interpreter of this version that the user can run with our modules; this one may lie below /root."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    trial = f"import sys, controller.store.embedded; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    for python in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        with suppress(OSError):
            run = subprocess.run(
                [python, "-c", trial],
                user=uid,
                group=uid,
                extra_groups=[],
                env=_with_our_modules(),
                cwd="/",
                stderr=subprocess.DEVNULL,
                timeout=60,
                check=False,
            )
            if run.returncode == 0:
                return python
    return None


def _with_our_modules() -> dict[str, str]:
    # Without the standard library: another interpreter has its own.
    ours = [path for path in sys.path if path and not Path(path).is_relative_to(sys.base_prefix)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(ours)}
