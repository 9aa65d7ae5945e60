"""`runtime: docker`, applied to a real controller: placed, started by a real agent, served, pinned, and removed."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.docker.dockerd import Dockerd
from support.docker.images import contained_spec
from support.docker.registry import NAME, running_registry
from support.processes.cluster import Cluster, Prepared

LIMIT_S = 90.0  # it is slow where much else runs
CHAT = {"model": "whole", "messages": [{"role": "user", "content": "hello"}]}
GPUS = {"resources": {"gpus": 1, "gpu_memory": "1GiB"}}


@pytest.fixture
async def cluster(data_dir: Path, prepared: Prepared, dockerd: Dockerd) -> AsyncIterator[Cluster]:
    """A controller, a worker with a Docker engine, and one without."""
    made = Cluster(data_dir, prepared)
    try:
        await made.start_controller()
        await made.start_agent("plain", gpus=1, GPUWARD_AGENT_DOCKER="off")
        path = f"{dockerd.folder}/bin:{os.environ['PATH']}"  # where an agent finds the toolkit
        await made.start_agent("docker", gpus=2, GPUWARD_AGENT_DOCKER=dockerd.address, PATH=path)

        async def has_docker() -> bool:
            runtimes = (await made.get("/workers/docker"))["status"]["runtimes"]
            return bool(runtimes) and runtimes[0]["usable"] and runtimes[0]["gpus"]

        await made.until(has_docker, "the worker has a Docker engine", LIMIT_S)
        yield made
    finally:
        await made.aclose()


async def digests(cluster: Cluster) -> set[str | None]:
    return {one["status"]["image_digest"] for one in await cluster.instances("whole")}


@pytest.mark.timeout(600)
async def test_from_apply_to_the_last_container(cluster: Cluster, dockerd: Dockerd) -> None:
    async with running_registry(filler=1) as registry:
        await cluster.apply("whole", **contained_spec(registry.image, docker={"pull": "always"}, **GPUS))
        await cluster.running("whole", limit_s=LIMIT_S)
        (instance,) = await cluster.instances("whole")
        assert instance["status"]["workers"] == ["docker"], "the other worker cannot"
        async with cluster.session.post("/v1/chat/completions", json=CHAT) as answer:
            assert answer.status == 200, await answer.text()
        assert (await cluster.get("/deployments/whole"))["status"]["image_digest"] == registry.digest
        (name,) = await dockerd.containers()
        devices = (await dockerd.inspect(name))["HostConfig"]["DeviceRequests"]
        assert [one["DeviceIDs"] for one in devices] == [instance["status"]["gpus"]]

        # The tag is gone; a second replica, and a restart of the first, run the same bytes.
        registry.tag = "2"
        status, scaled = await cluster.call("POST", "/deployments/whole/scale", {"replicas": 2})
        assert status == 200, scaled
        await cluster.until(lambda: _ready(cluster, 2), "both run", LIMIT_S)
        assert await digests(cluster) == {registry.digest}
        images = {(await dockerd.inspect(one))["Config"]["Image"] for one in await dockerd.containers()}
        assert len(images) == 1

        # A new revision looks at the tag again.
        spec = contained_spec(f"{registry.address}/{NAME}:2", replicas=1, **GPUS)
        await cluster.apply("whole", **spec)
        await cluster.until(lambda: _ready(cluster, 1, spec["image"]), "the new revision runs", LIMIT_S)
        await cluster.delete("whole")
        await cluster.gone("whole", LIMIT_S)
        await dockerd.until_containers(0)
    await cluster.audit()


@pytest.mark.timeout(300)
async def test_a_named_worker_without_docker_says_so(cluster: Cluster) -> None:
    await cluster.apply("named", **contained_spec("any/image", placement={"workers": ["plain"]}, **GPUS))

    async def refused() -> bool:
        found = await cluster.instances("named")
        return [one["status"]["reason"] for one in found] == ["runtime_unsupported"]

    await cluster.until(refused, "it is pending with the reason", LIMIT_S)
    (instance,) = await cluster.instances("named")
    assert "on plain" in instance["status"]["message"]
    await cluster.delete("named")
    await cluster.gone("named", LIMIT_S)


async def _ready(cluster: Cluster, count: int, image: str | None = None) -> bool:
    view: dict[str, Any] = await cluster.get("/deployments/whole")
    found = await cluster.instances("whole")
    newest = all(one["spec"]["revision"] == view["status"]["revision"] for one in found)
    of_image = image is None or view["spec"]["image"] == image
    return of_image and newest and [one["status"]["phase"] for one in found] == ["running"] * count
