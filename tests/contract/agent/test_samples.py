"""Sampling periods are sent in time, in full, and again until they are acknowledged."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from agent.clock import boot_clock
from agent.sampling import request_counts as requests_module
from schemas.wire import ProcessSample, Readings
from support.processes.agents import GPU0, GPU1, AgentUnderTest, running_agent, settings_for
from support.standins.controller import SECRET, WAIT_S, ControllerDouble, controller_double, rig_order, simulated_order

PERIOD_S = 0.5


@pytest.fixture
async def controller() -> AsyncIterator[ControllerDouble]:
    async with controller_double() as double:
        double.sample_s = PERIOD_S
        yield double


def process(controller: ControllerDouble, instance: str) -> ProcessSample | None:
    """The newest sample of an instance."""
    samples = [p for period in controller.periods for p in period.processes if p.instance == instance]
    return samples[-1] if samples else None


async def more(controller: ControllerDouble, count: int = 2) -> None:
    """Waits for `count` more periods; the last of them began after this call."""
    newest = max((period.seq for period in controller.periods), default=0)
    await controller.until(lambda: len({p.seq for p in controller.periods if p.seq > newest}) >= count)


async def test_periods_follow_one_another_on_the_boot_clock(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path):
        await more(controller, 3)
    _, *periods = controller.periods  # the first began before the welcome set the length
    assert [period.period_s for period in periods] == [PERIOD_S] * len(periods)
    assert [period.seq for period in periods] == sorted({int(period.sampled_s * 1000) for period in periods})
    assert 0 <= boot_clock() - periods[-1].sampled_s < WAIT_S
    for samples in controller.samples:
        assert samples.sent_s >= samples.periods[-1].sampled_s
    assert {gpu.uuid for gpu in periods[-1].gpus} == {GPU0, GPU1}


async def test_processes_of_one_gpu_have_their_own_samples(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path):
        for name, percent in (("busy", 95.0), ("idle", 0.0)):
            order = simulated_order(gpus=(GPU0,), memory_mib=2048, utilization=percent)
            await controller.start_order(name, order)
            await controller.state(name, "running")
        await more(controller)
        by_uuid = {gpu.uuid: gpu for gpu in controller.periods[-1].gpus}
        assert (by_uuid[GPU0].mean, by_uuid[GPU0].max, by_uuid[GPU0].used_mib) == (95, 95, 4096)
        assert (by_uuid[GPU1].max, by_uuid[GPU1].used_mib) == (0, 0)
        busy, idle = process(controller, "busy"), process(controller, "idle")
        assert busy is not None
        assert busy.utilization == {GPU0: Readings(mean=95, max=95)}
        assert idle is not None
        assert idle.utilization == {GPU0: Readings(mean=0, max=0)}


async def test_requests_are_counted_by_the_proxy_or_the_engine(
    controller: ControllerDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests_module, "SCRAPE_S", 0.2)
    gauges = ("simulated_requests_running", "simulated_requests_waiting")
    async with running_agent(controller, tmp_path), aiohttp.ClientSession() as session:
        slow = rig_order("--token-seconds", "0.5", gpus=(GPU0,), request_gauges=gauges)
        await controller.start_order("i-1", slow)
        await controller.start_order("quiet", simulated_order(gpus=(GPU1,)))
        for name in ("i-1", "quiet"):
            await controller.state(name, "running")

        def sampled(name: str, requests: int | None) -> bool:
            found = process(controller, name)
            return found is not None and found.requests == requests

        await controller.until(lambda: sampled("i-1", 0) and sampled("quiet", 0))
        port = controller.hellos[-1].proxy_port
        body = {"model": "demo", "prompt": "a", "max_tokens": 1000}
        async with asyncio.TaskGroup() as group:
            url = f"http://127.0.0.1:{port}/engines/i-1/v1/completions"
            request = group.create_task(_post(session, url, body))
            await controller.until(lambda: sampled("i-1", 1))
            request.cancel()
        await controller.until(lambda: sampled("i-1", 0))
        assert sampled("quiet", 0)


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> None:
    async with session.post(url, json=body, headers={"Authorization": f"Bearer {SECRET}"}) as response:
        await response.read()


async def test_unacknowledged_periods_are_sent_again_on_the_next_connection(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    controller.ack_samples = False
    async with running_agent(controller, tmp_path):
        await controller.until(lambda: len(controller.samples) > 0)
        first = controller.periods
        await asyncio.sleep(3 * PERIOD_S)
        assert controller.periods == first  # the next chunk waits for the acknowledgement
        await controller.stop()
        await asyncio.sleep(2 * PERIOD_S)
        controller.ack_samples = True
        before = len(controller.samples)
        await controller.start()
        await controller.until(lambda: len({p.seq for p in controller.periods}) >= 7)
    again = [period for samples in controller.samples[before:] for period in samples.periods]
    assert again[: len(first)] == list(first)
    seqs = [period.seq for period in again]
    assert seqs == sorted(set(seqs))
    gaps = [after.sampled_s - one.sampled_s for one, after in itertools.pairwise(again)]
    assert max(gaps) < 3 * PERIOD_S  # sampling continued without a connection


async def test_sequence_numbers_rise_over_a_restart(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path) as agent:
        await more(controller)
        await agent.crash()
    before = controller.periods[-1].seq
    async with running_agent(controller, tmp_path):
        await more(controller)
    assert all(period.seq > before for period in controller.periods[len(controller.periods) - 2 :])


async def test_unreadable_gpus_have_no_samples(controller: ControllerDouble, tmp_path: Path) -> None:
    hosts = tmp_path / "silent.yaml"
    hosts.write_text("workers: [{name: sim-1, telemetry_seconds: 1.5, gpus: [{model: H100, memory: 8GiB}]}]")
    agent = AgentUnderTest(settings_for(controller, tmp_path, simulate=hosts))
    await controller.until(lambda: bool(controller.heartbeats) and controller.heartbeats[-1].gpus is None)
    before = len(controller.periods)
    beats = len(controller.heartbeats)
    await controller.until(lambda: len(controller.heartbeats) >= beats + int(4 * PERIOD_S / controller.heartbeat_s))
    assert len(controller.periods) <= before + 1  # the period in progress when the telemetry ended
    assert await agent.stop() == 0
