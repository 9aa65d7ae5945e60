"""Engines in containers have a network of their own, in which they do not reach one another."""

import asyncio
from pathlib import Path
from typing import Any

from agent.decide.containers import NETWORK_LABEL
from schemas.wire import PROXY_ENGINE_PREFIX
from support.docker.dockerd import Dockerd
from support.docker.images import contained_engine, contained_script
from support.docker.observed import logged, said, until_logged
from support.processes.agents import running_agent
from support.standins.controller import ControllerDouble, controller_double

REACH = """
import socket, sys, time
for name, address in (("other", ({other!r}, {port})), ("world", ({gateway!r}, {proxy}))):
    try:
        socket.create_connection(address, timeout=3).close()
        print(name, "reached", flush=True)
    except OSError as error:
        print(name, "not reached:", type(error).__name__, flush=True)
print("done", flush=True)
time.sleep(60)
"""


async def place_of(dockerd: Dockerd) -> dict[str, Any]:
    """The network of the only container."""
    (name,) = await dockerd.containers()
    found = (await dockerd.inspect(name))["NetworkSettings"]
    assert isinstance(found, dict)
    return dict(next(iter(found["Networks"].values())))


async def test_engines_do_not_reach_one_another(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address, proxy_host="0.0.0.0"):  # noqa: S104 - a test
        await controller.start_order("i-1", contained_engine())
        await controller.state("i-1", "running")
        assert '"demo"' in await said(controller, f"{PROXY_ENGINE_PREFIX}/i-1/v1/models")
        place = await place_of(dockerd)
        (name,) = await dockerd.containers()
        exposed = (await dockerd.inspect(name))["Config"]["ExposedPorts"]  # type: ignore[index]
        (port,) = [int(one.removesuffix("/tcp")) for one in exposed]
        script = REACH.format(
            other=place["IPAddress"], port=port, gateway=place["Gateway"], proxy=controller.hellos[-1].proxy_port
        )
        await controller.start_order("i-2", contained_script(script))
        await until_logged(tmp_path, "done", "i-2")
    assert logged(tmp_path, "i-2") == ["other not reached: TimeoutError", "world reached", "done"]


async def networks_of(dockerd: Dockerd) -> list[str]:
    """The networks of all containers."""
    found = [await dockerd.inspect(name) for name in await dockerd.containers()]
    return [name for one in found for name in one["NetworkSettings"]["Networks"]]  # type: ignore[index]


async def test_agents_of_a_host_share_one_network(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    await dockerd.remove_networks(NETWORK_LABEL)
    (tmp_path / "other").mkdir()
    async with (
        controller_double() as other,
        running_agent(other, tmp_path / "other", docker=dockerd.address),
        running_agent(controller, tmp_path, docker=dockerd.address),
    ):
        for agent in (controller, other):
            await agent.start_order("i-1", contained_engine())
            await agent.state("i-1", "running")
        (made,) = await dockerd.networks(NETWORK_LABEL)
        assert await networks_of(dockerd) == [made["Name"]] * 2


async def test_agents_that_make_the_network_at_the_same_moment_do_no_harm(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path
) -> None:
    """Docker starts nothing in networks of the same name."""
    await dockerd.remove_networks(NETWORK_LABEL)
    (tmp_path / "other").mkdir()
    async with (
        controller_double() as other,
        running_agent(other, tmp_path / "other", docker=dockerd.address),
        running_agent(controller, tmp_path, docker=dockerd.address),
    ):
        agents = (controller, other)
        await asyncio.gather(*(one.start_order(f"i-{n}", contained_engine()) for n in (1, 2) for one in agents))
        for one in agents:
            for n in (1, 2):
                running = await one.state(f"i-{n}", "running", "exited")
                assert running.state == "running", running.message
        made = {one["Name"] for one in await dockerd.networks(NETWORK_LABEL)}
        used = await networks_of(dockerd)
        assert len(used) == 4
        assert set(used) <= made
