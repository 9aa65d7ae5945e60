"""Images come from a registry before the start: with progress, a deadline since the last of it, and stoppable."""

import asyncio
import base64
import os
from pathlib import Path

import orjson
import pytest
from msgspec.structs import replace

from schemas.exit_causes import cause_of_failed_start
from schemas.units import format_bytes
from schemas.wire import PULLING, StartOrder
from support.docker.dockerd import Dockerd
from support.docker.images import contained_engine
from support.docker.registry import NAME, Registry, running_registry
from support.processes.agents import running_agent
from support.standins.controller import WAIT_S, ControllerDouble

BIG = 12 * 2**20


def told(controller: ControllerDouble) -> list[str]:
    """What a starting process has said of its image."""
    return [one.message for one in controller.reports if one.state == "starting" and one.message.startswith(PULLING)]


def order_of(registry: Registry, stall_s: float = 20.0, **fields: object) -> StartOrder:
    return replace(contained_engine(image=registry.image, **fields), start_timeout_s=stall_s)


async def test_an_image_is_pulled_with_progress(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with running_registry(filler=BIG) as registry, running_agent(controller, tmp_path, docker=dockerd.address):
        registry.pause_s = 0.05  # longer in all than until the second word
        await controller.start_order("i-1", order_of(registry))
        await controller.until(lambda: any(" of " in one for one in told(controller)), limit_s=60)
        registry.pause_s = 0.0
        running = await controller.state("i-1", "running", "exited")
        assert running.state == "running", running.message
        assert (running.image_digest, running.message) == (registry.digest, "")
        assert any(f" of {format_bytes(registry.layer_bytes)}" in one for one in told(controller)), told(controller)
        before = registry.users
        registry.users = []
        by_digest = f"{registry.address}/{NAME}@{registry.digest}"
        order = order_of(registry)
        assert order.container is not None
        pinned = replace(order, container=replace(order.container, image=by_digest))
        await controller.start_order("i-2", pinned)
        assert (await controller.state("i-2", "running", "exited")).image_digest == registry.digest
        assert before
        assert registry.users == []  # it was here already


async def test_a_stop_ends_a_pull(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with (
        running_registry(filler=BIG + 1) as registry,
        running_agent(controller, tmp_path, docker=dockerd.address),
    ):
        registry.pause_s = 0.1
        await controller.start_order("i-1", order_of(registry))
        # Docker has read of the layer. One that is stopped while it opens a layer keeps that connection for minutes.
        await controller.until(lambda: any(" of " in one for one in told(controller)), limit_s=60)
        await controller.stop_order("i-1")
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("stopped", None)
        async with asyncio.timeout(WAIT_S):
            await registry.let_go.wait()
        assert await dockerd.containers() == []


async def test_a_pull_without_progress_ends(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with (
        running_registry(filler=BIG + 2) as registry,
        running_agent(controller, tmp_path, docker=dockerd.address),
    ):
        registry.stall_at = BIG // 2
        await controller.start_order("i-1", order_of(registry, stall_s=3.0))
        ended = await controller.state("i-1", "exited")
        assert ended.reason == "spawn_failed"
        assert cause_of_failed_start(ended.message) == "image_pull_failed"
        assert "no progress for 3 s" in ended.message


@pytest.mark.parametrize("pull", ["missing", "always"])
async def test_an_image_that_the_registry_lacks(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path, pull: str
) -> None:
    async with running_registry() as registry, running_agent(controller, tmp_path, docker=dockerd.address):
        image = f"{registry.address}/team/other:1"
        await controller.start_order("i-1", contained_engine(image=image, pull=pull))
        ended = await controller.state("i-1", "exited")
        assert ended.reason == "spawn_failed"
        assert ended.message.startswith(f"image_not_found: {image}: ")


async def test_a_registry_that_is_away(controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path, docker=dockerd.address):
        await controller.start_order("i-1", contained_engine(image="127.0.0.1:9/team/engine:1"))
        ended = await controller.state("i-1", "exited")
        assert cause_of_failed_start(ended.message) == "image_pull_failed"


async def test_a_stored_login_is_used(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_registry(filler=1) as registry, running_agent(controller, tmp_path, docker=dockerd.address):
        registry.asks_login = True
        stored = {"auths": {registry.address: {"auth": base64.b64encode(b"me:secret").decode()}}}
        (tmp_path / "config.json").write_bytes(orjson.dumps(stored))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        await controller.start_order("i-1", order_of(registry))
        running = await controller.state("i-1", "running", "exited")
        assert running.state == "running", running.message
        assert f"Basic {base64.b64encode(b'me:secret').decode()}" in registry.users


async def test_a_credential_helper_is_asked(
    controller: ControllerDouble, dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_registry(filler=2) as registry, running_agent(controller, tmp_path, docker=dockerd.address):
        registry.asks_login = True
        helper = tmp_path / "docker-credential-kept"
        helper.write_text("""#!/bin/sh\nexit 3\n""")
        helper.chmod(0o755)
        (tmp_path / "config.json").write_bytes(orjson.dumps({"credHelpers": {registry.address: "kept"}}))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        await controller.start_order("i-1", order_of(registry))
        ended = await controller.state("i-1", "exited")
        assert ended.message.endswith("; docker-credential-kept: it exits with code 3"), ended.message
        helper.write_text("""#!/bin/sh\nread server; echo '{"Username": "me", "Secret": "'"$server"'"}'\n""")
        await controller.start_order("i-1", order_of(registry), epoch=2)
        running = await controller.state("i-1", "running", "exited", epoch=2)
        assert running.state == "running", running.message
        given = base64.b64encode(f"me:{registry.address}".encode()).decode()
        assert f"Basic {given}" in registry.users
