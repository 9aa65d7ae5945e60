"""Hello, heartbeats, reconnecting, acknowledgements, silence and goodbye."""

import asyncio
import json
from pathlib import Path

import psutil
import pytest

from schemas.wire import Rejected
from support.processes.agents import GPU0, AgentUnderTest, running_agent, settings_for
from support.standins.controller import (
    WAIT_S,
    ControllerDouble,
    simulated_order,
    start_order,
)

SLEEP = ("sleep", "1000")


async def _gone(pid: int) -> None:
    """Waits for a process's end. psutil's wait would take the exit code from the agent."""
    async with asyncio.timeout(WAIT_S):
        while psutil.pid_exists(pid):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("agent")
async def test_hello_reports_host_gpus_and_proxy(controller: ControllerDouble) -> None:
    hello = controller.hellos[0]
    assert hello.inventory.host.simulated
    assert (hello.inventory.host.os, hello.inventory.host.arch) == ("linux", "x86_64")
    assert hello.inventory.host.labels["zone"] == "a"
    assert hello.inventory.gpus is not None
    assert [(gpu.index, gpu.memory_mib, gpu.model) for gpu in hello.inventory.gpus] == [
        (0, 8192, "H100"),
        (1, 8192, "H100"),
    ]
    assert hello.advertise is None
    assert hello.proxy_port > 0
    assert hello.processes == ()


@pytest.mark.usefixtures("agent")
async def test_heartbeats_report_the_load_of_running_engines(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", simulated_order(gpus=(GPU0,), memory_mib=2048, utilization=70.0))
    await controller.state("i-1", "running")
    seen = len(controller.heartbeats)
    await controller.until(lambda: len(controller.heartbeats) > seen + 1)
    gpus = controller.heartbeats[-1].gpus
    assert gpus is not None
    assert [(gpu.used_mib, gpu.utilization) for gpu in gpus] == [(2048, 70.0), (0, 0.0)]


async def test_the_agent_dials_again_after_a_rejection_that_is_not_final(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    controller.reject = Rejected(message="not the leader")
    agent = AgentUnderTest(settings_for(controller, tmp_path))
    await controller.until(lambda: controller.rejections >= 2)
    controller.reject = None
    await controller.connected()
    assert await agent.stop() == 0


@pytest.mark.parametrize(
    ("given", "least_s", "most_s"),
    [(["3"], 3.0, 4.8), (["1", "2"], 3.0, 5.8), (["0"], 0.0, 2.0), (["soon"], 0.0, 2.0), (["9" * 30], 0.0, 2.0)],
)
async def test_a_busy_controller_says_when_the_agents_turn_comes(
    controller: ControllerDouble, tmp_path: Path, given: list[str], least_s: float, most_s: float
) -> None:
    controller.busy = list(given)
    agent = AgentUnderTest(settings_for(controller, tmp_path))
    await controller.connected()
    assert least_s <= controller.tried_at[-1] - controller.tried_at[0] <= most_s
    assert len(controller.tried_at) == len(given) + 1
    assert await agent.stop() == 0


@pytest.mark.usefixtures("agent")
async def test_engines_keep_running_while_the_controller_is_away(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", simulated_order(gpus=(GPU0,)))
    before = await controller.state("i-1", "running")
    await controller.start_order("i-2", start_order("sleep", "0.6"))
    await controller.state("i-2", "running")
    await controller.stop()
    report = controller.latest("i-2")
    assert report is not None
    await _gone(report.pid or 0)
    await controller.start()
    await controller.connected(2)
    reported = {process.instance: process for process in controller.hellos[1].processes}
    assert (reported["i-1"].state, reported["i-1"].pid) == ("running", before.pid)
    assert (await controller.state("i-2", "exited")).exit_code == 0
    assert len(controller.joins) == 1


@pytest.mark.usefixtures("agent")
async def test_exits_are_reported_until_they_are_acknowledged(controller: ControllerDouble) -> None:
    controller.auto_ack = False
    await controller.start_order("i-1", start_order("true"))
    ended = await controller.state("i-1", "exited")
    await controller.drop()
    await controller.connected(2)
    assert controller.hellos[1].processes == (ended,)
    controller.auto_ack = True
    await controller.drop()
    await controller.connected(3)
    assert controller.hellos[2].processes == (ended,)
    await controller.start_order("i-2", start_order("true"))  # its acknowledgement follows the hello's
    await controller.state("i-2", "exited")
    await controller.drop()
    await controller.connected(4)
    assert "i-1" not in [process.instance for process in controller.hellos[3].processes]


@pytest.mark.usefixtures("agent")
async def test_the_agent_leaves_a_leader_of_an_old_term(controller: ControllerDouble) -> None:
    controller.term = 9
    await controller.start_order("i-1", start_order(*SLEEP))
    controller.term = 8
    await controller.drop()
    await controller.connected(3)  # dialled, and left because its term is over
    assert controller.hellos[-1].highest_term == 9
    controller.term = 10
    await controller.until(lambda: controller.latest("i-1") is not None and len(controller.hellos) >= 4)
    assert (await controller.stop_order("i-1")).outcome == "accepted"


async def test_a_clean_shutdown_stops_the_engines_and_says_goodbye(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path) as agent:
        await controller.start_order("i-1", simulated_order(gpus=(GPU0,)))
        report = await controller.state("i-1", "running")
        assert await agent.stop() == 0
    ended = await controller.state("i-1", "exited")
    assert ended.reason == "agent_stopped"
    assert controller.goodbyes == 1
    types = [json.loads(text) for text in controller.raw]
    said = next(n for n, message in enumerate(types) if message["type"] == "goodbye")
    stopping = next(n for n, message in enumerate(types) if message.get("state") == "stopping")
    assert said < stopping, "nothing may be placed on a host whose engines stop"
    assert not psutil.pid_exists(report.pid or 0)


@pytest.mark.usefixtures("agent")
async def test_a_process_with_a_fence_stops_at_the_controllers_silence(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", start_order(*SLEEP, stop_on_disconnect_after_s=3.0))
    await controller.start_order("i-2", start_order(*SLEEP))
    fenced = (await controller.state("i-1", "running")).pid or 0
    other = (await controller.state("i-2", "running")).pid or 0
    await asyncio.sleep(4.0)  # a controller without commands is not silent: it answers pings
    assert psutil.pid_exists(fenced)
    await controller.stop()
    await _gone(fenced)
    assert psutil.pid_exists(other)
    await controller.start()
    assert (await controller.state("i-1", "exited")).reason == "disconnected"
