"""`--trusted-proxy` before the controller and before `up`: a client's address is believed from that proxy alone."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from support.processes import reverse_proxy
from support.processes.cluster import Cluster
from support.processes.up_process import Up

pytestmark = pytest.mark.cases
PROXY = "127.0.0.9"
OTHER_PROXY = "127.0.0.10"
CLIENT = "127.0.0.21"
FORGED = "203.0.113.7"
PATH = os.pathsep.join(path for path in sys.path if path)


async def join(url: str, token: str, *, name: str = "host-1", claimed: str = FORGED) -> int:
    """The status of a join from `CLIENT`, which claims to be another address."""
    connector = aiohttp.TCPConnector(local_addr=(CLIENT, 0), force_close=True)
    body = json.dumps({"token": token, "name": name})
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"{url}/api/v1/join", data=body, headers={"X-Forwarded-For": claimed}) as response,
    ):
        return response.status


async def check(url: str, tokens: list[str], log: Callable[[], str]) -> None:
    """The proxy's word counts, no other's; bad tokens behind it are counted by token, others by address."""
    with (
        reverse_proxy.running(PROXY, url, path=PATH) as trusted,
        reverse_proxy.running(OTHER_PROXY, url, path=PATH) as other,
    ):
        statuses = [await join(trusted, "bad") for _ in range(25)]
        assert (statuses[0], statuses[-1]) == (401, 429)
        assert await join(trusted, "worse") == 401, "another token of the same address"
        assert await join(trusted, tokens[0]) == 200
        assert f"peer={CLIENT}" in log()
        # A proxy that is not trusted, and a client that says it was one: their own address counts.
        statuses = [await join(other, f"bad-{n}", claimed=f"198.51.100.{n}") for n in range(25)]
        assert (statuses[0], statuses[-1]) == (401, 429)
        statuses = [await join(url, f"bad-{n}", claimed=f"198.51.100.{n}") for n in range(25)]
        assert (statuses[0], statuses[-1]) == (401, 429)
        assert await join(trusted, tokens[1], name="host-2") == 200, "others are blocked, the proxy's clients are not"
    text = log()
    assert f"peer={OTHER_PROXY}" in text
    assert FORGED not in text
    assert "198.51.100." not in text
    assert text.count("join refused") <= 3


async def test_before_a_controller(cluster: Cluster) -> None:
    argv = ("controller", "--data-dir", str(cluster.data_dir), "--port", "0", "--trusted-proxy", f"{PROXY}/32")
    cluster.start("controller", *argv)
    await cluster.until(cluster._leads, "the controller leads", 60)
    tokens = [(await cluster.post("/tokens", {}))["token"] for _ in range(2)]
    await check(cluster.url, tokens, (cluster.folder / "controller.log").read_text)


async def test_before_up(data_dir: Path) -> None:
    with Up(data_dir, "--agents", "1", "--port", "0", "--trusted-proxy", f"{PROXY}/32") as up:
        await asyncio.to_thread(up.wait_until_ready)
        lines = (data_dir / "client.env").read_text().splitlines()
        values = dict(line.split("=", 1) for line in lines)
        key = {"Authorization": f"Bearer {values['GPUWARD_API_KEY']}"}
        async with aiohttp.ClientSession(values["GPUWARD_URL"], headers=key) as session:

            async def token() -> str:
                async with session.post("/api/v1/tokens", json={}) as answer:
                    return str((await answer.json())["token"])

            tokens = [await token(), await token()]
        await check(values["GPUWARD_URL"], tokens, (data_dir / "logs" / "gpuward.log").read_text)
        code, _ = await asyncio.to_thread(up.stop)
        assert code == 0
