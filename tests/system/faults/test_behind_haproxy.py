"""deploy/haproxy: two controllers behind one address; one is killed under load."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from support.database.postgres import PostgresServer, create_database, drop_database
from support.processes.controllers import Controllers
from support.processes.faults import RECOVERY_S, SHORT
from support.processes.request_load import Load

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="Debian's package haproxy is not installed")
CONFIGURATION = Path(__file__).parents[3] / "deploy" / "haproxy" / "haproxy.cfg"
CLIENTS = 6
LIMIT_S = 30


@pytest.fixture
async def controllers(data_dir: Path, postgres: PostgresServer) -> AsyncIterator[Controllers]:
    """Controllers a and b on one database; a leads."""
    dsn = await create_database(postgres)
    cluster = Controllers(data_dir, dsn)
    try:
        for name in ("a", "b"):
            await cluster.start_named(name, **SHORT, GPUWARD_TRUSTED_PROXY="127.0.0.1/32")
        yield cluster
    finally:
        await cluster.aclose()
        await drop_database(postgres, dsn)


@pytest.fixture
def address(controllers: Controllers, tmp_path: Path) -> Iterator[str]:
    """HAProxy with the configuration of the project, but for its addresses."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = CONFIGURATION.read_text()
    for name, written in (("a", "10.0.0.1:8420"), ("b", "10.0.0.2:8420")):
        assert written in text
        text = text.replace(written, f"127.0.0.1:{controllers.port_of(name)}")
    text = text.replace("bind :8080", f"bind 127.0.0.1:{port}").partition("frontend metrics")[0]
    text = text.replace("maxconn 20000", "maxconn 1000")  # within any machine's limit of open files
    file = tmp_path / "haproxy.cfg"
    file.write_text(text)
    with subprocess.Popen(["haproxy", "-db", "-f", str(file)], stdout=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.mark.cases
async def test_no_request_that_could_be_served_is_lost(controllers: Controllers, address: str) -> None:
    await controllers.start_agent("w", url=address)
    await controllers.apply("chat", engine="simulated", resources={"gpus": 1, "gpu_memory": "1GiB"})
    await controllers.running("chat")
    load = Load(address, controllers.headers())
    clients = [asyncio.create_task(load.client()) for _ in range(CLIENTS)]
    try:
        await controllers.until(lambda: len(load.ends) > 100, "requests are answered", LIMIT_S)
        its_own = psutil.Process(controllers.pid_of("a")).children(recursive=True)
        controllers.kill_named("a")
        killed = time.monotonic()
        await controllers.until(lambda: not any(one.is_running() for one in its_own), "its gateway ended", LIMIT_S)
        alone = time.monotonic()
        await controllers.until(lambda: controllers.leads("b"), "b leads", RECOVERY_S)
        before = len(load.ends)
        await controllers.until(lambda: len(load.ends) > before + 100, "b answers", LIMIT_S)
    finally:
        load.over.set()
        await asyncio.gather(*clients)
    failed = [end for end in load.ends if end[2] != 200]
    under_way = [end for end in failed if end[0] <= alone and end[1] >= killed]
    assert failed == under_way, "only what was under way at the dead one"
    controllers.through("b")
    await controllers.until(lambda: controllers.worker_is("w", "ready"), "the agent has another controller", RECOVERY_S)
    await controllers.audit()
