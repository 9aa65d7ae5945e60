"""Real processes that misbehave: they ignore signals, leave children, hang, or log without end."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from agent.processes import lifecycle
from agent.processes.folders import InstanceFolders
from agent.processes.process_group import ProcessGroup
from agent.state.process_records import ProcessKey
from schemas.wire import ProbeOrder
from support.processes.agents import GPU0, AgentUnderTest
from support.standins.controller import ControllerDouble, simulated_order, start_order

PROBE = ProbeOrder(path="/health", period_s=0.2, timeout_s=0.5, failures=2)


async def _family(controller: ControllerDouble, instance: str, count: int) -> list[int]:
    """The pids of a running process and its descendants, once there are `count` of them."""
    leader = psutil.Process((await controller.state(instance, "running")).pid)
    async with asyncio.timeout(10):
        while len(family := [leader, *leader.children(recursive=True)]) < count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)
    return [process.pid for process in family]


def _living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.mark.usefixtures("agent")
async def test_a_process_that_ignores_sigterm_is_killed_after_the_drain_time(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", simulated_order("--ignore-sigterm", gpus=(GPU0,)))
    await controller.state("i-1", "running")
    await controller.stop_order("i-1", drain_s=0.5)
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code) == ("stopped", -signal.SIGKILL)


@pytest.mark.usefixtures("agent")
async def test_what_no_signal_ends_is_reported_as_alive_until_it_is_gone(
    controller: ControllerDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the kernel's state D. It may hold its GPUs, and claims go on a reported end alone."""
    kill, released = ProcessGroup.kill, asyncio.Event()

    async def kill_in_vain(group: ProcessGroup, limit_s: float) -> str:
        if released.is_set():
            return await kill(group, limit_s)
        await asyncio.sleep(0.05)
        return f"pid {group.pid}"

    monkeypatch.setattr(ProcessGroup, "kill", kill_in_vain)
    await controller.start_order("i-1", simulated_order("--ignore-sigterm", gpus=(GPU0,)))
    pid = (await controller.state("i-1", "running")).pid
    await controller.stop_order("i-1", drain_s=0.1)
    await controller.until(lambda: "still alive" in _message(controller))
    assert f"pid {pid}" in _message(controller)
    await asyncio.sleep(0.3)  # it goes on trying
    assert [report.state for report in controller.reports if report.instance == "i-1"][-1] == "stopping"
    released.set()
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code, "still alive" in ended.message) == ("stopped", -signal.SIGKILL, False)


def _message(controller: ControllerDouble) -> str:
    report = controller.latest("i-1")
    return "" if report is None else report.message


@pytest.mark.usefixtures("agent")
async def test_a_second_stop_can_only_shorten_the_drain(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", simulated_order("--ignore-sigterm"))
    await controller.state("i-1", "running")
    await controller.stop_order("i-1", drain_s=300)
    await controller.state("i-1", "stopping")
    await controller.stop_order("i-1", drain_s=0.2)
    assert (await controller.state("i-1", "exited")).exit_code == -signal.SIGKILL


@pytest.mark.usefixtures("agent")
async def test_a_server_that_never_answered_does_not_get_the_time_for_requests(
    controller: ControllerDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A vLLM whose engine core has died at the start may ignore SIGTERM."""
    monkeypatch.setattr(lifecycle, "_UNREADY_DRAIN_S", 0.3)
    trapped = tmp_path / "trapped"
    script = f"trap '' TERM; touch {trapped}; while :; do sleep 0.1; done"
    await controller.start_order("i-1", start_order("bash", "-c", script, port=True))
    async with asyncio.timeout(10):
        while not trapped.exists():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)
    await controller.stop_order("i-1", drain_s=600)
    assert (await controller.state("i-1", "exited")).exit_code == -signal.SIGKILL


@pytest.mark.usefixtures("agent")
async def test_an_exit_is_reported_when_the_whole_group_is_gone(controller: ControllerDouble) -> None:
    script = "trap '' TERM; (sleep 1000 & sleep 1000) & setsid sleep 1000 & while :; do sleep 0.1; done"
    await controller.start_order("i-1", start_order("bash", "-c", script))
    family = await _family(controller, "i-1", 4)
    await controller.stop_order("i-1", drain_s=0.3)
    await controller.state("i-1", "exited")
    assert _living(family) == []


@pytest.mark.usefixtures("agent")
async def test_children_do_not_outlive_a_leader_that_exits(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", start_order("sh", "-c", "sleep 1000 & sleep 0.6; exit 3"))
    family = await _family(controller, "i-1", 3)
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code) == ("exit", 3)
    assert _living(family) == []


@pytest.mark.usefixtures("agent")
async def test_a_hung_engine_becomes_unhealthy_and_is_killed(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", simulated_order(liveness_timeout_s=1.0))
    report = await controller.state("i-1", "running")
    os.kill(report.pid or 0, signal.SIGSTOP)
    await controller.state("i-1", "unhealthy")
    ended = await controller.state("i-1", "exited")
    assert ended.reason == "liveness"


@pytest.mark.usefixtures("agent")
async def test_a_hung_engine_that_recovers_is_running_again(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", simulated_order(liveness_timeout_s=60.0))
    report = await controller.state("i-1", "running")
    os.kill(report.pid or 0, signal.SIGSTOP)
    await controller.state("i-1", "unhealthy")
    os.kill(report.pid or 0, signal.SIGCONT)
    assert (await controller.state("i-1", "running")).pid == report.pid


async def test_the_start_timeout_counts_from_the_last_progress(
    controller: ControllerDouble, agent: AgentUnderTest
) -> None:
    logs_progress = "for i in 1 2 3 4 5 6 7 8; do echo loading $i; sleep 0.3; done; sleep 1000"
    order = start_order("sh", "-c", logs_progress, port=True, probe=PROBE, start_timeout_s=1.2)
    await controller.start_order("i-1", order)
    ended = await controller.state("i-1", "exited")
    assert ended.reason == "start_timeout"
    log = InstanceFolders(agent.settings.data_dir).log(ProcessKey("i-1", 1, 0)).read_text()
    assert "loading 8" in log  # not killed during 2.4 s of progress


@pytest.mark.usefixtures("agent")
async def test_a_port_without_a_probe_is_probed_by_connecting(controller: ControllerDouble) -> None:
    listen = "import socket,sys,time; s=socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(1000)"
    await controller.start_order("i-1", start_order("{python}", "-c", listen, "{port}", port=True))
    assert (await controller.state("i-1", "running")).ready


@pytest.mark.usefixtures("agent")
async def test_a_killed_engines_exit_code_is_the_signal(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", start_order("sleep", "1000"))
    report = await controller.state("i-1", "running")
    os.kill(report.pid or 0, signal.SIGKILL)
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code) == ("exit", -signal.SIGKILL)


async def test_fifty_engines_start_and_stop(controller: ControllerDouble, agent: AgentUnderTest) -> None:
    names = [f"i-{n}" for n in range(50)]
    for name in names:
        await controller.start_order(name, start_order("sleep", "1000"))
    pids = [(await controller.state(name, "running")).pid or 0 for name in names]
    assert len(set(pids)) == 50
    assert await agent.stop() == 0
    assert {(await controller.state(name, "exited")).reason for name in names} == {"agent_stopped"}
    assert _living(pids) == []


def test_a_log_is_rotated_while_its_writer_continues(tmp_path: Path) -> None:
    folders, key = InstanceFolders(tmp_path, log_bytes=1000), ProcessKey("i-1", 1, 0)
    path = folders.log(key)
    with path.open("ab", buffering=0) as writer:
        writer.write(b"".join(b"line %04d\n" % n for n in range(300)))
        assert folders.rotate_log(key)
        writer.write(b"after\n")
        assert not folders.rotate_log(key)
    assert path.read_bytes() == b"after\n"
    rotated = path.with_suffix(".log.1").read_bytes()
    assert len(rotated) == 1000
    assert rotated.endswith(b"line 0299\n")


def test_logs_of_old_epochs_and_ended_instances_are_pruned(tmp_path: Path) -> None:
    folders = InstanceFolders(tmp_path)
    for number in range(70):
        folders.log(ProcessKey(f"i-{number}", 1, 0)).write_text("x")
        os.utime(folders.log(ProcessKey(f"i-{number}", 1, 0)), (number, number))
        os.utime(tmp_path / "instances" / f"i-{number}", (number, number))
    for epoch in range(2, 8):
        folders.log(ProcessKey("i-69", epoch, 0)).write_text("x")
    folders.prune(live={"i-0"})
    left = {path.name for path in (tmp_path / "instances").iterdir()}
    assert len(left) == 65
    assert {"i-0", "i-69", "i-6"} <= left
    assert "i-5" not in left
    assert [log.epoch for log in folders.logs("i-69")] == [7, 6, 5]


async def test_no_log_and_no_message_shows_a_secret(controller: ControllerDouble, agent: AgentUnderTest) -> None:
    """Nor does a restarted agent's: it has kept the values with the log."""
    order = start_order("sh", "-c", "echo token $T plain $P; echo Error: bad token $T >&2; exit 3", port=True)
    env = {"T": "hf_very-secret-value", "P": "shown"}
    order = replace(order, env=env, secret_env=("T",))
    await controller.start_order("i-1", order)
    ended = await controller.state("i-1", "exited")
    assert ended.message == "Error: bad token [redacted]"
    folders = InstanceFolders(agent.settings.data_dir)
    key = ProcessKey("i-1", 1, 0)
    assert folders.log_tail(key, folders.redactor(key)).startswith("token [redacted] plain shown\n")
