"""A real PgBouncer before the tests' PostgreSQL."""

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from support.database.gate import gate_to

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
_STARTS_S = 20.0
_ACCOUNT = "daemon"  # it does not run as root


@asynccontextmanager
async def pgbouncer(dsn: str, **settings: str) -> AsyncIterator[str]:
    """The same database through a PgBouncer with these settings, such as `pool_mode`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with gate_to(dsn) as gate:  # the server's own socket is closed to its account
        with _process(_configuration(gate.dsn, port, settings)) as ended:
            await _listens(port, ended)
            parts = urlsplit(gate.dsn)
            yield f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"


@contextmanager
def _process(configuration: str) -> Iterator[Callable[[], str | None]]:
    """Runs it; what is yielded tells what an ended one has logged, None of one that runs."""
    assert PROGRAM is not None, "install Debian's package pgbouncer"
    with tempfile.TemporaryDirectory(prefix="gpuward-pooler-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        file, log = folder / "pgbouncer.ini", folder / "log"
        file.write_text(configuration)
        argv = [PROGRAM, *(("-u", _ACCOUNT) if os.geteuid() == 0 else ()), str(file)]
        with log.open("w") as out, subprocess.Popen(argv, stdout=out, stderr=out) as process:
            try:
                yield lambda: None if process.poll() is None else log.read_text()
            finally:
                process.terminate()


def _configuration(dsn: str, port: int, settings: dict[str, str]) -> str:
    parts = urlsplit(dsn)
    name = parts.path.removeprefix("/")
    where = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
    told = " ".join(f"{key}={value}" for key, value in {**where, "dbname": name}.items() if value)
    lines = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "default_pool_size": "60",
        **settings,
    }
    return "\n".join((f"[databases]\n{name} = {told}\n[pgbouncer]", *map(" = ".join, lines.items()), ""))


async def _listens(port: int, ended: Callable[[], str | None]) -> None:
    async with asyncio.timeout(_STARTS_S):
        while True:
            assert (said := ended()) is None, said
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
