"""A restarted agent: which processes it adopts, reports as gone, or kills."""

import asyncio
import os
import time
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from agent.state.journal import Journal
from support.processes.agents import GPU0, running_agent
from support.standins.controller import (
    ControllerDouble,
    simulated_order,
    start_order,
)

SLEEP = ("sleep", "1000")


async def test_report_numbers_rise_over_restarts(controller: ControllerDouble, tmp_path: Path) -> None:
    highest = 0
    for instance in ("i-1", "i-2"):
        async with running_agent(controller, tmp_path):
            await controller.start_order(instance, start_order("true"))
            ended = await controller.state(instance, "exited")
            assert ended.seq > highest
            highest = ended.seq


@pytest.mark.parametrize("shutdown", ["crash", "keep"])
async def test_engines_outlive_the_agent_and_are_adopted(
    shutdown: str, controller: ControllerDouble, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path, on_exit="keep") as agent:
        port = controller.hellos[0].proxy_port
        await controller.start_order("i-1", simulated_order(gpus=(GPU0,)))
        before = await controller.state("i-1", "running")
        if shutdown == "crash":
            await agent.crash()
        else:
            assert await agent.stop() == 0
    assert psutil.pid_exists(before.pid or 0)
    async with running_agent(controller, tmp_path, join_token=None):
        hello = controller.hellos[-1]
        assert hello.proxy_port == port
        assert [(p.instance, p.state, p.pid, p.ready) for p in hello.processes] == [
            ("i-1", "running", before.pid, True)
        ]
        conflict = await controller.start_order("i-2", start_order(*SLEEP, gpus=(GPU0,), exclusive=True))
        assert conflict.code == "claim_conflict"
        await controller.stop_order("i-1")
        assert (await controller.state("i-1", "exited")).reason == "stopped"


async def test_an_engine_spawned_just_before_a_crash_is_adopted(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path) as agent:
        await controller.start_order("i-1", simulated_order(gpus=(GPU0,)))
        before = await controller.state("i-1", "running")
        await agent.crash()
    journal = Journal(tmp_path / "data")  # as after a crash between the spawn and its record
    (record,) = journal.live()
    journal.amend(replace(record, pid=None, pid_start_ticks=None, state="starting", ready=False))
    journal.close()
    async with running_agent(controller, tmp_path):
        assert [process.pid for process in controller.hellos[-1].processes] == [before.pid]
        assert (await controller.state("i-1", "running")).pid == before.pid


async def test_processes_that_died_meanwhile_are_gone_and_strays_are_killed(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path) as agent:
        leaves_child = "(unset GPUWARD_NO; exec setsid sleep 1000) & exec sleep 1000"
        for instance, argv in {"i-1": SLEEP, "i-2": ("sh", "-c", leaves_child), "i-3": SLEEP}.items():
            await controller.start_order(instance, start_order(*argv))
        pids = {name: (await controller.state(name, "running")).pid or 0 for name in ("i-1", "i-2", "i-3")}
        parents = {name: psutil.Process(pid).ppid() for name, pid in pids.items()}
        escaped = [child.pid for child in psutil.Process(pids["i-2"]).children()]
        assert len(escaped) == 1
        await agent.crash()
    for name in ("i-1", "i-2"):
        os.kill(parents[name], 9)  # so that the end of neither is recorded
        os.kill(pids[name], 9)
    journal = Journal(tmp_path / "data")
    stray = next(record for record in journal.live() if record.instance == "i-3")
    journal.record(replace(stray, state="exited", reason="gone", order=None))
    journal.close()
    async with running_agent(controller, tmp_path):
        for name in ("i-1", "i-2"):
            gone = await controller.state(name, "exited")
            assert (gone.reason, gone.exit_code) == ("gone", None)
        _assert_dead(escaped[0])  # the rest of i-2 was killed before its exit was reported
        _assert_dead(pids["i-3"])  # exited in the journal, thus a stray


def _assert_dead(pid: int) -> None:
    try:
        psutil.Process(pid).wait(5)
    except psutil.NoSuchProcess:
        return


async def test_the_time_of_a_start_goes_on_over_a_restart_of_the_agent(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    """Else an agent that is often replaced would let an engine log for ever."""
    chatters = ("{python}", "-c", "import time\nwhile True: print('loading', flush=True); time.sleep(0.02)")
    async with running_agent(controller, tmp_path) as agent:
        await controller.start_order("i-1", start_order(*chatters, port=True, start_timeout_s=0.5))
        began_s = time.monotonic()
        await asyncio.sleep(3)
        await agent.crash()
    async with running_agent(controller, tmp_path, join_token=None):
        await controller.until(lambda: "exited" in str(controller.latest("i-1")), 20)
    ended = controller.latest("i-1")
    assert ended is not None
    assert ended.reason == "start_timeout"
    assert 6 <= time.monotonic() - began_s < 9
