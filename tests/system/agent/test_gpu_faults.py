"""What GPUs do under a real agent with real engines: worker and instance say so, and nothing is stopped on a guess."""

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.nvml.false_driver import GPUS, SLICES, FalseDriver
from support.processes.cluster import Cluster, Prepared

pytestmark = [pytest.mark.cases, pytest.mark.timeout(400)]

A, B = GPUS[:2]
NAME = "gpu-host"
TOLD_WITHIN_S = 15.0
SLACK = 3.0  # of waits that promise nothing


class World:
    """A controller, an agent over a false driver, and an engine on the first GPU."""

    def __init__(self, folder: Path, prepared: Prepared, gpus: int = 2) -> None:
        self.cluster = Cluster(folder, prepared)
        self.driver = FalseDriver(folder, gpus)

    async def begin(self) -> None:
        await self.cluster.start_controller()
        await self.start_agent()

    async def start_agent(self, name: str = NAME, driver: FalseDriver | None = None) -> None:
        folder = self.cluster.folder / name
        argv = ["agent", "--controller", self.cluster.url, "--name", name, "--data-dir", str(folder)]
        if not folder.exists():
            argv += ["--join-token", (await self.cluster.post("/tokens", {}))["token"]]
        self.cluster.start(name, *argv, "--on-exit", "keep", **(driver or self.driver).env)
        await self.cluster.until(lambda: self.cluster.worker_is(name, "ready"), f"{name} is ready", 60)

    async def deploy(self, name: str = "chat", **spec: Any) -> dict[str, Any]:
        given = {"resources": {"gpus": 1, "gpu_memory": "4GiB"}, **spec}
        await self.cluster.apply(name, **given)
        await self.cluster.running(name, 60)
        (one,) = await self.cluster.instances(name)
        return one

    async def gpu(self, uuid: str) -> dict[str, Any]:
        return (await self.cluster.get(f"/gpus/{uuid}"))["status"]

    async def worker(self, name: str = NAME) -> dict[str, Any]:
        return (await self.cluster.get(f"/workers/{name}"))["status"]

    async def conditions(self, name: str = NAME) -> dict[str, str]:
        return {one["type"]: one["reason"] for one in (await self.worker(name))["conditions"]}

    async def reasons(self, of: str) -> list[str]:
        return [event["reason"] for event in (await self.cluster.get(f"/events?object={of}&limit=200"))["items"]]

    async def told(self, what: str, seen: Any) -> None:
        """Waits until it is seen, and holds the promise: within 15 s of the write of the scenario just before.

        It is told by a heartbeat (each 5 s) after a reading (each 1 s), at most 5 s after the first failed one. Where
        more processes want to run than there are cores, all of that takes longer by as much.
        """
        began = time.monotonic()
        load = os.getloadavg()[0]
        await self.cluster.until(seen, what, 8 * TOLD_WITHIN_S)
        took, slower = time.monotonic() - began, max(load, os.getloadavg()[0]) / (os.cpu_count() or 1)
        assert took <= TOLD_WITHIN_S * max(1.0, slower), f"{what}: after {took:.1f} s, with {slower:.1f} for each core"

    async def beats_on(self) -> None:
        """The heartbeat goes on, and the engine runs as before."""
        before = (await self.worker())["last_seen"]

        async def newer() -> bool:
            status = await self.worker()
            return status["last_seen"] > before and status["phase"] == "ready"

        await self.cluster.until(newer, "the heartbeat goes on", 30)


@pytest.fixture
async def world(data_dir: Path, prepared: Prepared) -> AsyncIterator[World]:
    made = World(data_dir, prepared)
    try:
        await made.begin()
        yield made
    finally:
        await made.cluster.aclose()


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of a process that no agent has started."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


async def test_unknown_gpus_are_told_and_stop_nothing(world: World) -> None:
    one = await world.deploy()
    world.driver.add("hang nvmlDeviceGetMemoryInfo 600")

    async def unknown() -> bool:
        return (await world.conditions()).get("GpusReadable") == "nvml_hang"

    await world.told("the worker says that NVML hangs", unknown)
    assert not (await world.worker())["gpus_known"]
    (seen,) = await world.cluster.instances("chat")
    assert seen["status"]["phase"] == "running"
    (claim,) = (c for c in seen["status"]["claims"] if c["kind"] == "gpu")
    assert (claim["health"], claim["health_reason"].split(":")[0]) == ("unknown", "nvml_hang")
    await world.beats_on()
    world.driver.only()

    async def known() -> bool:
        return "GpusReadable" not in await world.conditions() and bool((await world.worker())["gpus_known"])

    await world.cluster.until(known, "the GPUs are known again", 30 * SLACK)
    (after,) = await world.cluster.instances("chat")
    assert (after["name"], after["status"]["epoch"]) == (one["name"], one["status"]["epoch"]), "nothing was stopped"
    for of in (f"worker/{NAME}", f"instance/{one['name']}"):
        told = await world.reasons(of)
        assert (told.count("gpus_unreadable"), told.count("gpus_readable")) == (1, 1), told
    await world.cluster.audit()


async def test_a_driver_upgrade_is_over_without_a_restart_of_the_agent(world: World) -> None:
    one = await world.deploy()
    world.driver.change_driver("590.10.01")
    began = time.monotonic()

    async def new() -> bool:
        status = await world.worker()
        return bool(status["driver"] == "590.10.01" and status["gpus_known"])

    await world.cluster.until(new, "the new driver is read", 30 * SLACK)
    assert time.monotonic() - began < 30 * SLACK
    (after,) = await world.cluster.instances("chat")
    assert (after["name"], after["status"]["epoch"]) == (one["name"], one["status"]["epoch"])


async def test_a_lost_gpu_loses_its_instance_and_is_told_when_it_is_back(world: World) -> None:
    one = await world.deploy()
    (gpu,) = one["status"]["gpus"]
    other = B if gpu == A else A
    world.driver.set(gpu, used=4000)
    world.driver.add(f"fail * 15 {gpu}")

    async def moved() -> bool:
        found = await world.cluster.instances("chat")
        return [i["status"]["gpus"] for i in found if i["status"]["phase"] == "running"] == [[other]]

    await world.told("the GPU is unhealthy", lambda: _health_is(world, gpu, "gpu_lost"))

    async def no_figures() -> bool:
        return (await world.gpu(gpu))["used_mib"] is None

    await world.cluster.until(no_figures, "no stale figures are shown", 10)
    await world.cluster.until(moved, "another instance runs on the other GPU", 60)
    told = await world.reasons(f"instance/{one['name']}")
    assert {"gpu_unhealthy", "stopping"} <= set(told), told
    assert (await world.conditions())["GpusHealthy"] == "gpu_lost"
    world.driver.only()
    await world.told("the GPU is well", lambda: _health_is(world, gpu, ""))
    assert "gpu_recovered" in await world.reasons(f"gpu/{gpu}")
    assert "GpusHealthy" not in await world.conditions()

    world.driver.add(f"fail * 15 {gpu}")
    await world.told("it is lost once more", lambda: _health_is(world, gpu, "gpu_lost"))
    world.driver.only()
    await world.told("it is not used at once", lambda: _health_is(world, gpu, "unsteady"))
    assert (await world.conditions())["GpusHealthy"] == "unsteady"
    await world.cluster.post(f"/gpus/{gpu}/uncordon")
    await world.told("an operator knows better", lambda: _health_is(world, gpu, ""))
    assert "GpusHealthy" not in await world.conditions()
    await world.cluster.audit()


async def test_a_task_stays_on_its_lost_gpu_and_says_why(world: World) -> None:
    one = await world.deploy("task", restart="never")
    (gpu,) = one["status"]["gpus"]
    world.driver.gpus.pop(gpu)
    world.driver.write()

    async def unhealthy() -> bool:
        (seen,) = await world.cluster.instances("task")
        return bool(seen["status"]["phase"] == "unhealthy" and seen["status"]["reason"] == "gpu_lost")

    await world.told("the task is unhealthy", unhealthy)
    assert (await world.gpu(gpu))["present"] is False
    assert (await world.gpu(gpu))["used_mib"] is None
    assert "gpu_missing" in await world.reasons(f"instance/{one['name']}")
    world.driver.gpus[gpu] = {}
    world.driver.write()
    await world.cluster.until(lambda: world.cluster.phase_is("task", "running"), "it runs again", 40)
    assert "gpu_recovered" in await world.reasons(f"gpu/{gpu}")
    await world.cluster.audit()


async def test_xids_and_readings_are_shown_and_grave_ones_condemn(world: World, stranger: int) -> None:
    world.driver.set(A, power=300000, temp=71, ecc_uncorrected=2)
    world.driver.add(f"proc {A} pid={stranger} mem=700")
    one = await world.deploy()
    (gpu,) = one["status"]["gpus"]
    for code in (13, 31, 43, 45):
        world.driver.xid(gpu, code)

    async def counted() -> bool:
        return bool(((await world.gpu(gpu))["details"] or {}).get("last_xid") == 45)

    await world.cluster.until(counted, "the events are counted", 40 * SLACK)
    assert (await world.gpu(gpu))["health"] == "ok"
    world.driver.xid(gpu, 95)
    await world.told("the GPU is condemned", lambda: _health_is(world, gpu, "xid_95"))
    await asyncio.sleep(1)
    (after,) = await world.cluster.instances("chat")
    assert (after["name"], after["status"]["phase"]) == (one["name"], "running"), "it may go on until it fails"
    details = (await world.gpu(A))["details"]
    assert (details["power_w"], details["temperature_c"], details["ecc_uncorrected"]) == (300.0, 71.0, 2)
    assert "nvlinks" in details["unsupported"]
    assert details["foreign"] == [{"pid": stranger, "name": "sleep", "memory_mib": 700}]
    await world.cluster.audit()


async def test_a_verdict_and_a_cordon_outlive_restarts_until_an_operator_ends_them(world: World) -> None:
    one = await world.deploy()
    (gpu,) = one["status"]["gpus"]
    pid = world.cluster.engines()[one["name"]].pid

    async def watched() -> bool:
        world.driver.xid(gpu, 13)
        return bool(((await world.gpu(gpu))["details"] or {}).get("last_xid") == 13)

    await world.cluster.until(watched, "events are seen", 60)
    world.driver.xid(gpu, 48)
    await world.told("the GPU is condemned", lambda: _health_is(world, gpu, "xid_48"))
    world.driver.only()
    world.cluster.kill(NAME)
    await world.start_agent()
    await world.beats_on()
    assert await _health_is(world, gpu, "xid_48"), "the next agent knows it"
    await world.cluster.post(f"/gpus/{gpu}/cordon")
    world.cluster.kill("controller")
    await world.cluster.start_controller()
    await world.cluster.until(lambda: world.cluster.worker_is(NAME, "ready"), "the agent is back", 60)
    assert (await world.cluster.get(f"/gpus/{gpu}"))["spec"]["cordoned"]
    await world.cluster.post(f"/gpus/{gpu}/uncordon")
    await world.told("the GPU is well", lambda: _health_is(world, gpu, ""))
    assert not (await world.cluster.get(f"/gpus/{gpu}"))["spec"]["cordoned"]
    told = await world.reasons(f"gpu/{gpu}")
    assert {"gpu_unhealthy", "gpu_cordoned", "gpu_uncordoned", "gpu_recovered"} <= set(told), told
    assert world.cluster.engines()[one["name"]].pid == pid, "the engine ran through all of it"
    await world.cluster.audit()


async def test_a_gpu_that_two_hosts_report_belongs_to_the_first(world: World, tmp_path: Path) -> None:
    other, elsewhere = "other-host", FalseDriver(tmp_path)
    await world.start_agent(other, elsewhere)

    async def says(code: str | None) -> bool:
        return (await world.conditions(other)).get("GpusOwn") == code

    await world.told("the second host says so", lambda: says("gpu_held_elsewhere"))
    assert (await world.gpu(A))["worker"] == (await world.gpu(B))["worker"] == NAME
    assert "GpusOwn" not in await world.conditions()
    assert "gpu_held_elsewhere" in await world.reasons(f"worker/{other}")
    assert (await world.deploy())["status"]["worker"] == NAME
    elsewhere.gpus = {uuid: {} for uuid in GPUS[4:6]}
    elsewhere.write()
    await world.cluster.until(lambda: says(None), "it has GPUs of its own", 30 * SLACK)
    found = (await world.cluster.get(f"/gpus?worker={other}"))["items"]
    assert [one["name"] for one in found] == list(GPUS[4:6])
    await world.cluster.audit()


async def test_slices_are_claimed_and_their_gpu_is_not(world: World) -> None:
    world.driver.set(A, mig=1, util="none")
    for n, slice_ in enumerate(SLICES[:2]):
        world.driver.slices[slice_] = {"parent": A, "gi": n + 1, "ci": 0, "mem": 20096, "name": "NVIDIA_H100"}
    world.driver.write()

    async def sliced() -> bool:
        return (await world.cluster.call("GET", f"/gpus/{SLICES[1]}"))[0] == 200 and (await world.gpu(A))["mig_mode"]

    await world.told("the slices are there", sliced)
    one = await world.deploy("named", placement={"gpus": [SLICES[1]]}, resources={"gpus": 1, "exclusive": True})
    assert one["status"]["gpus"] == [SLICES[1]]
    engine = world.cluster.engines()[one["name"]]
    assert engine.environ()["CUDA_VISIBLE_DEVICES"] == SLICES[1]
    assert (await world.gpu(SLICES[1]))["parent"] == A
    world.driver.add(f"fail * 999 {B}")
    await world.told("the whole GPU cannot be read", lambda: _health_is(world, B, "gpu_unreadable"))
    assert (await world.deploy("any"))["status"]["gpus"] == [SLICES[0]]
    await world.cluster.audit()


async def _health_is(world: World, uuid: str, code: str) -> bool:
    status, body = await world.cluster.call("GET", f"/gpus/{uuid}")
    found = body["status"] if status == 200 else {"health": "", "health_reason": "?"}
    return bool(found["health_reason"].split(":")[0] == code and (found["health"] == "ok") == (not code))
