"""Gateways of a service whose socket a service manager holds: a new one serves while the one before drains."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import aiohttp
import psutil
import pytest

from support.processes.cluster import Cluster
from support.processes.gateway_service import GatewayService
from support.processes.gateways import CHAT, asked

pytestmark = [pytest.mark.cases, pytest.mark.timeout(240)]
SERVICE = {"GPUWARD_GATEWAY": "false", "GPUWARD_SOCKET_ONLY": "true"}
TICK_S = 0.25
DRAIN = ("--drain", "150s")


@pytest.fixture
async def service(cluster: Cluster) -> AsyncIterator[GatewayService]:
    """A controller, an agent and the model `m`, behind a gateway of its own service."""
    made = GatewayService(cluster)
    made.start("gateway-1", *DRAIN)  # before its controller, as at a boot
    await cluster.start_controller(**SERVICE)
    await cluster.start_agent("gpu-1")
    await cluster.apply("m", resources={"gpus": 1})
    await cluster.running("m")
    yield made
    made.close()


async def stream(cluster: Cluster, seconds: float) -> str:
    """A streamed answer that takes this long; what it brings."""
    told = f"tokens={int(seconds / TICK_S)} token_seconds={TICK_S}"
    limit = aiohttp.ClientTimeout(total=seconds + 60)
    async with cluster.session.post(CHAT, json=asked(told, stream=True), timeout=limit) as answer:
        assert answer.status == 200, await answer.text()
        return str(await answer.text())


class Callers:
    """Clients that ask a model again and again, each time over a new connection or over one that they keep."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.answers = 0
        self.failures: list[str] = []
        self._tasks = [asyncio.create_task(self._call(kept)) for kept in (True, False, False)]

    async def _call(self, kept: bool) -> None:
        connector = aiohttp.TCPConnector(force_close=not kept)
        limit, headers = aiohttp.ClientTimeout(total=30), self.cluster.session.headers
        async with aiohttp.ClientSession(self.cluster.url, connector=connector, timeout=limit, headers=headers) as asks:
            while True:
                try:
                    async with asks.post(CHAT, json=asked("tokens=1")) as answer:
                        if answer.status != 200:
                            self.failures.append(f"{answer.status} {await answer.text()}")
                    self.answers += 1
                except aiohttp.ClientError as error:
                    self.failures.append(repr(error))
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize("seconds", [15.0, pytest.param(120.0, marks=pytest.mark.nightly)])
async def test_an_upgrade_of_both_services_breaks_nothing(
    cluster: Cluster, service: GatewayService, seconds: float, processes: str
) -> None:
    env = {"GPUWARD_GATEWAY_PROCESSES": processes}
    assert await service.stop("gateway-1") == 0
    before = service.start("gateway-2", *DRAIN, **env)
    answer = asyncio.create_task(stream(cluster, seconds))
    callers = Callers(cluster)
    await cluster.until(lambda: callers.answers > 10, "models answer", 30)
    serving = psutil.Process(before.pid).children()

    cluster.signal("controller", signal.SIGTERM)
    await cluster.until(lambda: cluster.processes["controller"].poll() is not None, "the controller ends", 30)
    await cluster.start_controller(**SERVICE)
    assert await service.stop("gateway-2") == 0
    assert not answer.done(), "the first process ends before the stream"
    service.start("gateway-3", *DRAIN, **env)
    answered = callers.answers
    await cluster.until(lambda: callers.answers > answered + 10, "the new gateway answers", 30)
    assert not answer.done(), "the new gateway serves while the one before drains"

    text = await answer
    await callers.stop()
    assert callers.failures == []
    assert text.rstrip().endswith("data: [DONE]")
    assert text.count('"content"') >= seconds / TICK_S
    assert (await cluster.get("/leader"))["leading"]
    await cluster.until(lambda: not any(one.is_running() for one in serving), "what has drained ends", 20)


async def test_a_hanging_process_is_not_left_behind(cluster: Cluster, service: GatewayService) -> None:
    parent = psutil.Process(cluster.processes["gateway-1"].pid)
    (hanging,) = parent.children()
    hanging.suspend()
    assert await service.stop("gateway-1") == 0
    await cluster.until(lambda: not hanging.is_running(), "the parent's end ends it", 20)

    killed = service.start("gateway-2")
    await cluster.until(lambda: psutil.Process(killed.pid).children(), "it forks", 20)
    (hanging,) = psutil.Process(killed.pid).children()
    hanging.suspend()
    killed.send_signal(signal.SIGABRT)  # as a watchdog does
    await cluster.until(lambda: not hanging.is_running(), "the kernel ends it", 20)

    service.start("gateway-3")
    async with asyncio.timeout(30), cluster.session.post(CHAT, json=asked("tokens=1")) as answer:
        assert answer.status == 200


async def test_systemd_passes_the_socket(cluster: Cluster) -> None:
    """With systemd's own program, which starts a gateway at the first connection."""
    activate = shutil.which("systemd-socket-activate")
    if activate is None:
        pytest.skip("no systemd-socket-activate here")
    cluster.port = free_port()
    argv = (activate, f"--listen=127.0.0.1:{cluster.port}", "-E", "PYTHONPATH", sys.executable, "-P", "-m", "cli")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    manager = subprocess.Popen(  # noqa: ASYNC220 - it does not block
        [*argv, "gateway", "--data-dir", str(cluster.data_dir)], env=env
    )
    cluster.processes["gateway"] = manager
    await cluster.until(lambda: listens(cluster.port), "it listens")
    await cluster.start_controller(**SERVICE)
    async with asyncio.timeout(30), cluster.session.get("/v1/models") as answer:
        assert answer.status == 200


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def listens(port: int) -> bool:
    listening = (one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr)
    return any(one.laddr[1] == port for one in listening)


def test_it_takes_one_socket_that_listens() -> None:
    code = "from http1.protocol.listening import inherited_listener as taken; print(taken())"
    script = 'exec 3<"$1" 4<"$1"; LISTEN_PID=$$ LISTEN_FDS=$2 exec "$3" -c "$4"'
    for count, said in (("2", "keep one ListenStream="), ("1", "not a listening TCP socket")):
        argv = ["sh", "-c", script, "sh", "/dev/null", count, sys.executable, code]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
        assert said in done.stderr
