"""Joining, reconnecting, acknowledging, ending; and what the agent keeps over its own death."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from agent.journal import Journal
from schemas.wire import Rejected
from support.agents import GPU0, AgentUnderTest, running_agent, settings_for
from support.controller_double import (
    CREDENTIAL,
    TOKEN,
    WAIT_S,
    ControllerDouble,
    simulated_order,
    start_order,
)

SLEEP = ("sleep", "1000")


async def _exit_code(controller: ControllerDouble, folder: Path, **fields: object) -> int:
    agent = AgentUnderTest(settings_for(controller, folder, **fields))
    async with asyncio.timeout(WAIT_S):
        return await agent.task


async def _gone(pid: int) -> None:
    """Waits for a process's end. Not by psutil's wait, which would take the exit code from the agent."""
    async with asyncio.timeout(WAIT_S):
        while psutil.pid_exists(pid):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("agent")
async def test_hello_tells_host_gpus_and_proxy(controller: ControllerDouble) -> None:
    hello = controller.hellos[0]
    assert hello.inventory.host.simulated
    assert (hello.inventory.host.os, hello.inventory.host.arch) == ("linux", "x86_64")
    assert hello.inventory.host.labels == {"zone": "a"}
    assert hello.inventory.gpus is not None
    assert [(gpu.index, gpu.memory_mib, gpu.model) for gpu in hello.inventory.gpus] == [
        (0, 8192, "H100"),
        (1, 8192, "H100"),
    ]
    assert hello.advertise is None
    assert hello.proxy_port > 0
    assert hello.processes == ()


@pytest.mark.usefixtures("agent")
async def test_heartbeats_carry_the_load_of_what_runs(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", simulated_order(gpus=(GPU0,), memory_mib=2048, utilization=70.0))
    await controller.state("i-1", "running")
    seen = len(controller.heartbeats)
    await controller.until(lambda: len(controller.heartbeats) > seen + 1)
    gpus = controller.heartbeats[-1].gpus
    assert gpus is not None
    assert [(gpu.used_mib, gpu.utilization) for gpu in gpus] == [(2048, 70.0), (0, 0.0)]


async def test_a_wrong_token_ends_the_agent(controller: ControllerDouble, tmp_path: Path) -> None:
    assert await _exit_code(controller, tmp_path, join_token="wrong") == 1
    assert len(controller.joins) == 1


async def test_without_credential_and_token_it_says_so(controller: ControllerDouble, tmp_path: Path) -> None:
    assert await _exit_code(controller, tmp_path, join_token=None) == 1
    assert controller.joins == []


async def test_a_final_rejection_ends_it_and_a_new_token_joins_again(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path) as agent:
        await controller.send(Rejected(message="deleted", final=True))
        async with asyncio.timeout(WAIT_S):
            assert await agent.task == 1
    controller.credentials.clear()
    assert await _exit_code(controller, tmp_path, join_token=None) == 1
    assert await _exit_code(controller, tmp_path, join_token="another") == 1
    assert [join.token for join in controller.joins] == [TOKEN, "another"]


async def test_a_token_from_a_file_joins_and_a_newer_one_in_it_joins_again(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    given = {"join_token": None, "join_token_file": file}
    assert await _exit_code(controller, tmp_path, **given) == 1
    assert controller.joins == []
    file.write_text(f"{TOKEN}\n")
    async with running_agent(controller, tmp_path, **given):
        pass
    file.unlink()
    async with running_agent(controller, tmp_path, **given):
        pass
    controller.credentials.clear()
    assert await _exit_code(controller, tmp_path, **given) == 1
    file.write_text("another\n")
    assert await _exit_code(controller, tmp_path, **given) == 1
    assert [join.token for join in controller.joins] == [TOKEN, "another"]


async def test_an_empty_token_file_is_refused(
    controller: ControllerDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    file.write_text("\n")
    assert await _exit_code(controller, tmp_path, join_token=None, join_token_file=file) == 1
    assert controller.joins == []
    assert "is empty" in "".join(capsys.readouterr())


async def test_a_rejection_that_is_not_final_is_dialled_again(controller: ControllerDouble, tmp_path: Path) -> None:
    controller.reject = Rejected(message="not the leader")
    agent = AgentUnderTest(settings_for(controller, tmp_path))
    await controller.until(lambda: controller.rejections >= 2)
    controller.reject = None
    await controller.connected()
    assert await agent.stop() == 0


@pytest.mark.usefixtures("agent")
async def test_engines_run_on_while_the_controller_is_away(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", simulated_order(gpus=(GPU0,)))
    before = await controller.state("i-1", "running")
    await controller.start_order("i-2", start_order("sleep", "0.6"))
    await controller.state("i-2", "running")
    await controller.stop()
    pid = controller.latest("i-2")
    assert pid is not None
    await _gone(pid.pid or 0)
    await controller.start()
    await controller.connected(2)
    told = {process.instance: process for process in controller.hellos[1].processes}
    assert (told["i-1"].state, told["i-1"].pid) == ("running", before.pid)
    assert (await controller.state("i-2", "exited")).exit_code == 0
    assert len(controller.joins) == 1


@pytest.mark.usefixtures("agent")
async def test_ends_are_told_until_they_are_acknowledged(controller: ControllerDouble) -> None:
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
    await controller.start_order("i-2", start_order("true"))  # its acks come after the one of the hello
    await controller.state("i-2", "exited")
    await controller.drop()
    await controller.connected(4)
    assert "i-1" not in [process.instance for process in controller.hellos[3].processes]


async def test_sequence_numbers_rise_over_restarts(controller: ControllerDouble, tmp_path: Path) -> None:
    highest = 0
    for instance in ("i-1", "i-2"):
        async with running_agent(controller, tmp_path):
            await controller.start_order(instance, start_order("true"))
            ended = await controller.state(instance, "exited")
            assert ended.seq > highest
            highest = ended.seq


@pytest.mark.usefixtures("agent")
async def test_an_old_leader_is_not_obeyed(controller: ControllerDouble) -> None:
    controller.term = 9
    await controller.start_order("i-1", start_order(*SLEEP))
    controller.term = 8
    await controller.drop()
    await controller.connected(3)  # dialled and left again, since its term is over
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
    assert not psutil.pid_exists(report.pid or 0)


@pytest.mark.parametrize("way", ["crash", "keep"])
async def test_engines_outlive_the_agent_and_are_adopted(
    way: str, controller: ControllerDouble, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path, on_exit="keep") as agent:
        port = controller.hellos[0].proxy_port
        await controller.start_order("i-1", simulated_order(gpus=(GPU0,)))
        before = await controller.state("i-1", "running")
        if way == "crash":
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


async def test_what_died_meanwhile_is_gone_and_strays_are_killed(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path) as agent:
        leaves_one = "(unset GPUWARD_NO; exec setsid sleep 1000) & exec sleep 1000"
        for instance, argv in {"i-1": SLEEP, "i-2": ("sh", "-c", leaves_one), "i-3": SLEEP}.items():
            await controller.start_order(instance, start_order(*argv))
        pids = {name: (await controller.state(name, "running")).pid or 0 for name in ("i-1", "i-2", "i-3")}
        escaped = [child.pid for child in psutil.Process(pids["i-2"]).children()]
        assert len(escaped) == 1
        await agent.crash()
    for name in ("i-1", "i-2"):
        os.kill(pids[name], 9)
    journal = Journal(tmp_path / "data")
    forgotten = next(record for record in journal.live() if record.instance == "i-3")
    journal.record(forgotten.model_copy(update={"state": "exited", "reason": "gone", "order": None}))
    journal.close()
    async with running_agent(controller, tmp_path):
        for name in ("i-1", "i-2"):
            gone = await controller.state(name, "exited")
            assert (gone.reason, gone.exit_code) == ("gone", None)
        _assert_dead(escaped[0])  # the rest of i-2, dead before i-2 was called dead
        _assert_dead(pids["i-3"])  # the journal holds it for dead


def _assert_dead(pid: int) -> None:
    try:
        psutil.Process(pid).wait(5)
    except psutil.NoSuchProcess:
        return


async def test_an_engine_spawned_just_before_a_crash_is_found(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path) as agent:
        await controller.start_order("i-1", simulated_order(gpus=(GPU0,)))
        before = await controller.state("i-1", "running")
        await agent.crash()
    journal = Journal(tmp_path / "data")  # as if the crash had come between the start and the journal's line
    (record,) = journal.live()
    journal.amend(record.model_copy(update={"pid": None, "pid_start_ticks": None, "state": "starting", "ready": False}))
    journal.close()
    async with running_agent(controller, tmp_path):
        assert [process.pid for process in controller.hellos[-1].processes] == [before.pid]
        assert (await controller.state("i-1", "running")).pid == before.pid


async def test_a_second_agent_on_the_same_folder_is_refused(
    controller: ControllerDouble, agent: AgentUnderTest, tmp_path: Path
) -> None:
    assert await _exit_code(controller, tmp_path) == 1
    assert not agent.task.done()


async def test_another_name_on_the_same_folder_is_refused(controller: ControllerDouble, tmp_path: Path) -> None:
    async with running_agent(controller, tmp_path):
        pass
    assert await _exit_code(controller, tmp_path, name="other") == 1


@pytest.mark.usefixtures("agent")
async def test_silence_of_the_controller_kills_what_must_not_outlive_it(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", start_order(*SLEEP, stop_on_disconnect_after_s=3.0))
    await controller.start_order("i-2", start_order(*SLEEP))
    fenced = (await controller.state("i-1", "running")).pid or 0
    other = (await controller.state("i-2", "running")).pid or 0
    await asyncio.sleep(4.0)  # a controller that orders nothing is not silent: it answers pings
    assert psutil.pid_exists(fenced)
    await controller.stop()
    await _gone(fenced)
    assert psutil.pid_exists(other)
    await controller.start()
    assert (await controller.state("i-1", "exited")).reason == "disconnected"


@pytest.mark.usefixtures("controller")
async def test_the_credential_is_kept_from_others(agent: AgentUnderTest) -> None:
    folder = agent.settings.data_dir
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "journal.sqlite").stat().st_mode & 0o077 == 0
    assert CREDENTIAL not in repr(agent.settings)
