"""A backup is taken while 200 instances run and change, and put back on another host: it is of one moment, and nothing
that runs and is wanted is stopped."""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from rig.agent import AgentDouble
from support.processes.cluster import Json, Prepared
from support.processes.operated import OperatedCluster

HOSTS, GPUS = 25, 8
STEADY = 160  # instances; as many as the changing ones have at times make up the rest
CHANGING = 8
SMALL = {"resources": {"gpus": 1, "gpu_memory": "8GiB"}}
SETTLED_S = 60.0


class LoadedCluster(OperatedCluster):
    """A controller with many hosts in name only."""

    hosts: list[AgentDouble]

    @asynccontextmanager
    async def with_hosts(self) -> AsyncIterator[None]:
        """All hosts, connected."""
        token = (await self.post("/tokens", {"uses": HOSTS}))["token"]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            host_of = partial(AgentDouble, url=self.url, http=http, gpus=GPUS, beat_s=3.0, again_s=0.3)
            self.hosts = [host_of(f"host-{n}") for n in range(HOSTS)]
            await asyncio.gather(*(host.join(token) for host in self.hosts))
            tasks = [asyncio.create_task(host.run(), name=host.name) for host in self.hosts]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [one for one in ended if not isinstance(one, asyncio.CancelledError)] == []

    async def change(self, number: int, stopped: asyncio.Event) -> None:
        """Scales one deployment up and down, stops, starts, deletes and applies it anew, as fast as that goes."""
        name, n = f"changing-{number}", 0
        while not stopped.is_set():
            await self.apply(name, replicas=3 + n % 4, **SMALL)
            if n % 5 == number % 5:
                await self.post(f"/deployments/{name}/stop")
                await self.post(f"/deployments/{name}/start")
            if n % 7 == number % 7:
                await self.delete(name)
            n += 1

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """All of that at once."""
        stopped = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(CHANGING):
                group.create_task(self.change(number, stopped))
            try:
                yield
            finally:
                stopped.set()

    def running_of(self) -> Counter[str]:
        """The number of processes on all hosts by uid of their deployment."""
        return Counter(order.deployment_uid for host in self.hosts for order in host.orders.values())

    async def wanted_of(self) -> dict[str, int] | None:
        """The number of replicas that each deployment wants, by uid; None: they are not there yet."""
        items: list[Json] = (await self.get("/deployments?limit=1000"))["items"]
        if not all(one["status"]["phase"] in ("running", "stopped") for one in items):
            return None
        return {one["uid"]: one["spec"]["replicas"] for one in items if one["status"]["phase"] == "running"}

    async def at_rest(self) -> bool:
        """Whether on all hosts there runs what is wanted and nothing else."""
        wanted = await self.wanted_of()
        return wanted is not None and self.running_of() == Counter(wanted)


@pytest.fixture
async def cluster(data_dir: Path, prepared: Prepared) -> AsyncIterator[LoadedCluster]:
    made = LoadedCluster(data_dir, prepared)
    yield made
    await made.aclose()


@pytest.mark.cases
async def test_a_backup_taken_under_load_comes_back_whole(cluster: LoadedCluster, tmp_path: Path) -> None:
    file = tmp_path / "backup.zip"
    await cluster.start_controller()
    async with cluster.with_hosts():
        await cluster.apply("steady", replicas=STEADY, **SMALL)
        for number in range(CHANGING):
            await cluster.apply(f"changing-{number}", replicas=5, **SMALL)
        await cluster.until(cluster.at_rest, "200 instances run", SETTLED_S)
        assert sum(cluster.running_of().values()) == 200
        async with cluster.changing():
            await cluster.done("backup", str(file))
        await cluster.until(cluster.at_rest, "what changed has settled", SETTLED_S)

        await cluster.stop_controller()
        ran, here = cluster.running_of(), cluster.data_dir
        before = {host.name: set(host.orders) for host in cluster.hosts}
        for host in cluster.hosts:
            host.stopped.clear()
        cluster.data_dir = cluster.folder / "another-host"
        said = await cluster.done("restore", str(file), "--yes")
        assert "violat" not in said, said
        shutil.copy(here / "client.env", cluster.data_dir / "client.env")
        await cluster.start_controller()
        await cluster.until(cluster.at_rest, "what the backup wants runs", SETTLED_S)
        await cluster.audit()

        # The moment of the backup may be between a start and its end, so what has started since may end as well.
        wanted = await cluster.wanted_of()
        assert wanted is not None
        lost = [
            (key, order) for host in cluster.hosts for key, order in host.stopped.items() if key in before[host.name]
        ]
        stopped = Counter(order.deployment_uid for _, order in lost)
        assert stopped == ran - Counter(wanted), "only what is not wanted, or beyond what is"
        (steady,) = [uid for uid, replicas in wanted.items() if replicas == STEADY]
        assert stopped[steady] == 0
