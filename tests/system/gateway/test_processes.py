"""Several processes that serve one port together, and the process that forks them."""

import asyncio
import json
import re
import signal
import time
from pathlib import Path

import aiohttp
import asyncpg
import psutil
import pytest

from support.processes.cluster import Cluster
from support.processes.gateways import CHAT, Another, asked, embedded_dsn, with_a_model

pytestmark = pytest.mark.cases


async def fresh(cluster: Cluster, path: str = "/v1/models", key: str = "", **options: object) -> tuple[int, bytes]:
    """Status and body of a request over a connection of its own; a body makes it a POST."""
    headers = {"Authorization": f"Bearer {key}"} if key else cluster.session.headers
    async with aiohttp.ClientSession(cluster.url, headers=headers) as session:
        method = "POST" if "json" in options else "GET"
        async with session.request(method, path, **options) as answer:
            return answer.status, await answer.read()


async def test_two_processes_are_one_gateway(cluster: Cluster) -> None:
    await with_a_model(cluster, GPUWARD_GATEWAY_PROCESSES="2")
    serving = cluster.gateway_parent().children()
    assert len(serving) == 2

    for _ in range(6):  # whichever takes the connection
        status, text = await fresh(cluster, "/metrics")
        assert status == 200
        for process in (b"1", b"2"):
            assert b'gpuward_gateway_bodies_in_flight_bytes{process="%s"} 0.0' % process in text
        assert text.count(b"# TYPE gpuward_gateway_bodies_in_flight_bytes ") == 1
        assert b"gpuward_leader 1.0" in text
        assert (await fresh(cluster, "/readyz"))[0] == 200
        assert (await fresh(cluster, "/healthz"))[0] == 200
    database = await asyncpg.connect(embedded_dsn(cluster))
    names = [row["name"] for row in await database.fetch("select name from gateways order by name")]
    await database.close()
    assert [name.rpartition("/")[2] for name in names] == ["1", "2"]

    limited = (await cluster.post("/keys", {"role": "inference", "rpm": 20}))["key"]
    statuses = await asyncio.gather(*(fresh(cluster, CHAT, limited, json=asked("tokens=1")) for _ in range(40)))
    assert sorted(status for status, _ in statuses) == [200] * 20 + [429] * 20, "one limit for both"

    # A process that is frozen makes all of them not ready: some connections would wait for it.
    serving[0].suspend()
    await asyncio.sleep(0.5)  # what the processes know of one another is kept for 0.2 s
    codes = [(await fresh_or_none(cluster, "/readyz")) for _ in range(6)]
    serving[0].resume()
    assert 200 not in codes
    assert 503 in codes
    await cluster.until(lambda: is_ready(cluster), "it is ready again")

    # A dead one is replaced, and no connection is refused meanwhile.
    serving[1].kill()
    began = time.monotonic()
    assert {status for status, _ in await asyncio.gather(*(fresh(cluster) for _ in range(20)))} == {200}
    assert time.monotonic() - began < 3.0, "1 s, and thrice that on a loaded machine"
    assert len([one for one in cluster.gateway_parent().children() if one.status() != psutil.STATUS_ZOMBIE]) == 2
    log = (cluster.folder / "controller.log").read_text()
    assert re.search(r"gateway serving .*process=1\b", log)
    assert re.search(r"gateway serving .*process=2\b", log)


async def fresh_or_none(cluster: Cluster, path: str) -> int | None:
    try:
        async with asyncio.timeout(5):
            return (await fresh(cluster, path))[0]
    except TimeoutError:
        return None


async def is_ready(cluster: Cluster) -> bool:
    return await fresh_or_none(cluster, "/readyz") == 200


def sockets_in(folder: Path) -> list[Path]:
    """The folders of the sockets by which processes ask one another."""
    return list(folder.glob("gpuward-gateway-*"))


@pytest.mark.parametrize("processes", [1, 2])
async def test_where_the_forking_process_is_killed_nothing_is_refused(cluster: Cluster, processes: int) -> None:
    temporary = cluster.folder / "tmp"
    temporary.mkdir(mode=0o777)
    await with_a_model(cluster, GPUWARD_GATEWAY_PROCESSES=str(processes), TMPDIR=str(temporary))
    parent = cluster.gateway_parent()
    serving = parent.children()
    stream = asyncio.create_task(fresh(cluster, CHAT, json=asked("tokens=100 token_seconds=0.1", stream=True)))
    await asyncio.sleep(0.5)
    parent.kill()
    longest = 0.0

    async def replaced() -> bool:
        nonlocal longest
        began = time.monotonic()
        assert (await fresh(cluster, CHAT, json=asked("tokens=1")))[0] == 200
        longest = max(longest, time.monotonic() - began)
        return not [one for one in serving if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]

    await cluster.until(replaced, "the earlier processes have ended, once their successors served", 60)
    assert longest < 2.0
    assert cluster.gateway_parent().pid != parent.pid
    status, text = await stream
    assert status == 200
    assert text.endswith(b"data: [DONE]\n\n"), "a stream of before goes on to its end"
    assert (await fresh(cluster, "/readyz"))[0] == 200
    assert len(sockets_in(temporary)) == (processes > 1), "the dead one's are removed"
    # The controller's end is also that of a gateway which lost its forking process.
    cluster.gateway_parent().kill()
    controller = cluster.processes["controller"]
    controller.terminate()
    assert await asyncio.to_thread(controller.wait, 20) == 0


async def test_g21_sigterm_with_50_streams(cluster: Cluster) -> None:
    await with_a_model(cluster)
    other = Another(cluster, drain="12s", processes=2)
    await cluster.until(other.is_ready, "the other gateway is ready", 60)
    short = [asyncio.create_task(other.stream("tokens=50 token_seconds=0.1")) for _ in range(25)]
    long = [asyncio.create_task(other.stream("tokens=900 token_seconds=0.1")) for _ in range(25)]
    await asyncio.sleep(1.0)
    process = cluster.processes["gateway"]
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    await cluster.until(lambda: not_ready(other), "not ready at once", 2.0)
    while time.monotonic() - began < 3.0:
        assert await other.status() == 503, "new connections are taken, for load balancers to see it"
        await asyncio.sleep(0.2)
    await cluster.until(lambda: refused(other), "new connections are refused", 5.0)
    assert 4.5 < time.monotonic() - began < 8.0
    for text, whole in await asyncio.gather(*short):
        assert whole
        assert b"[DONE]" in text
    for text, whole in await asyncio.gather(*long):
        assert not whole
        assert json.loads(text.rpartition(b"data: ")[2])["error"]["code"] == "unavailable"
    assert 11.0 < time.monotonic() - began < 18.0
    assert await asyncio.to_thread(process.wait, 10) == 0


async def not_ready(other: Another) -> bool:
    return await other.status() == 503


async def refused(other: Another) -> bool:
    return await other.status() == 0


async def test_a_port_that_is_in_use_is_refused(cluster: Cluster) -> None:
    await cluster.start_controller()
    cluster.start("second", "controller", "--data-dir", str(cluster.folder / "second"), "--port", str(cluster.port),
                  "--gateway-processes", "2")  # fmt: skip
    assert await asyncio.to_thread(cluster.processes.pop("second").wait, 60) == 1
    assert "choose another port with --port" in cluster.log("second")
