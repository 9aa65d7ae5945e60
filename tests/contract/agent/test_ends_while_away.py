"""An engine ends while its agent is away: the next agent reports how, with the engine's own pid."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from agent.processes.engine_parent import EndRecord
from agent.processes.folders import InstanceFolders
from agent.state.journal import Journal
from agent.state.process_records import ProcessKey
from schemas.wire import LOWEST_PROTOCOL, SPOKEN, ProcessReport, Protocols
from support.processes.agents import AgentUnderTest, running_agent, settings_for
from support.processes.small_disk import small_disk
from support.standins.controller import WAIT_S, ControllerDouble, start_order

EARLIER = Protocols(LOWEST_PROTOCOL, SPOKEN.highest - 1)
PRIVATE_KIB = 8 * 1024


async def _agent(controller: ControllerDouble, folder: Path, spoken: Protocols = SPOKEN) -> AgentUnderTest:
    agent = AgentUnderTest(settings_for(controller, folder, on_exit="keep", cgroup=str(folder / "cgroup")), spoken)
    async with asyncio.timeout(WAIT_S):
        await agent.ready.wait()
    return agent


AWAY: dict[str, tuple[Protocols, Protocols, Callable[[AgentUnderTest], Awaitable[object]]]] = {
    "stopped with keep": (SPOKEN, SPOKEN, AgentUnderTest.stop),
    "killed": (SPOKEN, SPOKEN, AgentUnderTest.crash),
    "of the previous protocol, then upgraded": (EARLIER, SPOKEN, AgentUnderTest.stop),
    "replaced by one of the previous protocol": (SPOKEN, EARLIER, AgentUnderTest.crash),
}


def _made_cgroup(folder: Path) -> Path:
    """A control group as the kernel makes it, with all its files; it begins empty."""
    group = folder / "cgroup" / "engines" / "i-1.1.0"
    group.mkdir(parents=True)
    (folder / "cgroup" / "cgroup.procs").touch()
    for file in ("cgroup.procs", "memory.max", "memory.events"):
        (group / file).write_text("")
    return group


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)


def _ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def _living(pid: int) -> bool:
    return not _ended(pid)


def _parent(pid: int) -> psutil.Process:
    parent = psutil.Process(pid).parent()
    assert parent is not None
    return parent


def _private_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


async def _waiting_engine(controller: ControllerDouble, go: Path, then: str) -> ProcessReport:
    """An engine that waits for a file, and then does something."""
    script = f"while [ ! -e {go} ]; do sleep 0.05; done; {then}"
    await controller.start_order("i-1", start_order("bash", "-c", script))
    return await controller.state("i-1", "running")


@pytest.mark.parametrize("away", AWAY)
@pytest.mark.parametrize(
    ("then", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -15 $$", -15), ("ulimit -c 0; kill -11 $$", -11)],
)
async def test_the_next_agent_reports_the_exit_code(
    then: str, code: int, away: str, controller: ControllerDouble, tmp_path: Path
) -> None:
    before, after, leave = AWAY[away]
    go = tmp_path / "go"
    first = await _agent(controller, tmp_path, before)
    running = await _waiting_engine(controller, go, then)
    await leave(first)
    go.touch()
    await _until(lambda: _ended(running.pid or 0))
    second = await _agent(controller, tmp_path, after)
    try:
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code, ended.pid) == ("exit", code, running.pid)
    finally:
        await second.stop()
    assert not psutil.pid_exists(running.pid or 0), "nothing of it is left, not even a zombie"


@pytest.mark.parametrize("away", AWAY)
async def test_a_kill_for_want_of_memory_is_named(away: str, controller: ControllerDouble, tmp_path: Path) -> None:
    before, after, leave = AWAY[away]
    group = _made_cgroup(tmp_path)
    first = await _agent(controller, tmp_path, before)
    running = await _waiting_engine(controller, tmp_path / "go", "kill -9 $$")
    assert (group / "cgroup.procs").read_text() == str(running.pid), "its parent is in no group of the engine"
    await leave(first)
    (tmp_path / "go").touch()
    await _until(lambda: _ended(running.pid or 0))
    (group / "memory.events").write_text("oom 1\noom_kill 1\n")
    second = await _agent(controller, tmp_path, after)
    try:
        ended = await controller.state("i-1", "exited")
        assert (ended.reason, ended.exit_code) == ("exit", -signal.SIGKILL)
        assert ended.message.startswith("oom_killed: ")
    finally:
        await second.stop()


async def test_a_code_is_reported_whenever_the_end_comes(controller: ControllerDouble, tmp_path: Path) -> None:
    """While the first agent runs, while none does, and while the next one does."""
    for when in ("first", "away", "next"):
        instance, folder = f"i-{when}", tmp_path / when
        folder.mkdir()
        script = f"while [ ! -e {folder / 'go'} ]; do sleep 0.05; done; exit 7"
        agent = await _agent(controller, folder)
        await controller.start_order(instance, start_order("bash", "-c", script))
        await controller.state(instance, "running")
        if when == "first":
            (folder / "go").touch()
            await controller.state(instance, "exited")
        await agent.crash()
        if when == "away":
            (folder / "go").touch()
            await asyncio.sleep(0.3)
        agent = await _agent(controller, folder)
        (folder / "go").touch()
        ended = await controller.state(instance, "exited")
        assert (ended.reason, ended.exit_code) == ("exit", 7), when
        await agent.stop()


async def test_a_second_absence_loses_no_code(controller: ControllerDouble, tmp_path: Path) -> None:
    """The next agent dies too, before it has reported: nothing was forgotten."""
    agent = await _agent(controller, tmp_path)
    running = await _waiting_engine(controller, tmp_path / "go", "exit 5")
    for _ in range(3):
        await agent.crash()
        agent = await _agent(controller, tmp_path)
    await agent.crash()
    (tmp_path / "go").touch()
    await _until(lambda: _ended(running.pid or 0))
    agent = await _agent(controller, tmp_path)
    assert (await controller.state("i-1", "exited")).exit_code == 5
    await agent.stop()


async def test_the_end_counts_when_the_whole_group_is_gone(controller: ControllerDouble, tmp_path: Path) -> None:
    """The leader ends with 0 while no agent runs; its child has left its environment, and only the group has it."""
    agent = await _agent(controller, tmp_path)
    child = tmp_path / "child"
    hidden = f"env -i bash -c 'echo $$ > {child}; exec sleep 1000' & "
    running = await _waiting_engine(controller, tmp_path / "go", f"{hidden} sleep 0.2; exit 0")
    await agent.crash()
    (tmp_path / "go").touch()
    await _until(lambda: _ended(running.pid or 0))
    left = int(child.read_text())
    assert _living(left)
    agent = await _agent(controller, tmp_path)
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code) == ("exit", 0)
    assert _ended(left)
    await agent.stop()


async def test_without_its_parent_only_the_code_is_unknown(controller: ControllerDouble, tmp_path: Path) -> None:
    agent = await _agent(controller, tmp_path)
    running = await _waiting_engine(controller, tmp_path / "go", "exit 0")
    parent = _parent(running.pid or 0)
    parent.kill()
    await _until(lambda: not parent.is_running() or parent.status() == psutil.STATUS_ZOMBIE)
    assert _living(running.pid or 0), "it runs on"
    (tmp_path / "go").touch()
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code) == ("exit", None)
    await agent.stop()


async def test_without_its_parent_an_end_in_between_is_unknown(controller: ControllerDouble, tmp_path: Path) -> None:
    agent = await _agent(controller, tmp_path)
    running = await _waiting_engine(controller, tmp_path / "go", "exit 0")
    await agent.crash()
    _parent(running.pid or 0).kill()
    (tmp_path / "go").touch()
    await _until(lambda: not psutil.pid_exists(running.pid or 0) or _ended(running.pid or 0))
    agent = await _agent(controller, tmp_path)
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code) == ("gone", None)
    await agent.stop()


async def test_a_code_that_was_recorded_outlives_the_parent_and_the_hosts_restart(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    agent = await _agent(controller, tmp_path)
    running = await _waiting_engine(controller, tmp_path / "go", "exit 4")
    parent = _parent(running.pid or 0)
    await agent.crash()
    (tmp_path / "go").touch()
    await _until(lambda: _ended(running.pid or 0))
    await _until(lambda: _record(tmp_path, running).read() is not None)
    parent.kill()
    journal = Journal(tmp_path / "data")
    (record,) = journal.live()
    journal.amend(replace(record, boot_id="an-earlier-one"))
    journal.close()
    agent = await _agent(controller, tmp_path)
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code) == ("exit", 4)
    await agent.stop()


def _record(folder: Path, running: ProcessReport) -> EndRecord:
    journal = Journal(folder / "data")
    (known,) = journal.live()
    journal.close()
    path = InstanceFolders(folder / "data").end(ProcessKey("i-1", 1, 0))
    return EndRecord(path, running.pid, known.pid_start_ticks)


@pytest.mark.parametrize(
    ("then", "serves", "expected"),
    [
        ("wait", False, ("agent_stopped", -15)),
        ("exit 0", False, ("exit", 0)),
        ("exit 0", True, ("agent_stopped", 0)),
    ],
)
async def test_what_the_hosts_shutdown_ends_does_not_count_as_a_crash(
    then: str, expected: tuple[str, int], controller: ControllerDouble, tmp_path: Path, *, serves: bool
) -> None:
    """Then all processes are signalled. A task that ends with 0 has finished its work; a server has heeded that."""
    agent = await _agent(controller, tmp_path)
    trap, pid_file = "trap 'exit 0' TERM; " if then == "exit 0" else "", tmp_path / "pid"
    script = f"{trap}echo $$ > {pid_file}; " + ("while :; do sleep 0.1; done" if trap else "exec sleep 1000")
    await controller.start_order("i-1", start_order("bash", "-c", script, port=serves))
    await _until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    engine = psutil.Process(int(pid_file.read_text()))
    parent = _parent(engine.pid)
    await agent.stop()
    for process in (parent, engine):
        process.suspend()
    for process in (engine, parent):
        process.terminate()
        process.resume()
    await _until(lambda: _ended(engine.pid))
    agent = await _agent(controller, tmp_path)
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code) == expected
    await agent.stop()


async def test_an_engine_of_an_earlier_agent_is_adopted_without_a_code(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    """It had no such parent, and the journal names none."""
    agent = await _agent(controller, tmp_path)
    running = await _waiting_engine(controller, tmp_path / "go", "exit 0")
    await agent.crash()
    _parent(running.pid or 0).kill()
    journal = Journal(tmp_path / "data")
    (record,) = journal.live()
    journal.amend(replace(record, parent_pid=None, parent_start_ticks=None))
    journal.close()
    InstanceFolders(tmp_path / "data").end(record.key).unlink()
    agent = await _agent(controller, tmp_path)
    assert (await controller.state("i-1", "running")).pid == running.pid
    (tmp_path / "go").touch()
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code) == ("exit", None)
    await agent.stop()


async def test_the_parent_is_small_and_apart_and_ends_after_its_engine(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    async with running_agent(controller, tmp_path):
        await controller.start_order("i-1", start_order("sleep", "1000"))
        pid = (await controller.state("i-1", "running")).pid or 0
        parent = _parent(pid)
        assert _private_kib(parent.pid) <= PRIVATE_KIB
        assert os.getsid(parent.pid) not in (os.getsid(pid), os.getsid(os.getpid()))
        assert os.getpgid(parent.pid) != os.getpgid(pid) == pid
        assert parent.cwd() == "/"
        assert not [file for file in parent.open_files() if "logs" in file.path and not file.path.endswith(".end")]
        assert not {"GPUWARD_INSTANCE", "GPUWARD_AGENT_DIR"} & parent.environ().keys()
        await controller.stop_order("i-1")
        await controller.state("i-1", "exited")
        assert not parent.is_running()
    assert not list((tmp_path / "data").glob("instances/*/logs/*.end"))


async def test_a_parent_whose_record_is_removed_ends_with_its_engine(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    """No agent will ever ask for it: its data folder is gone, or the journal was lost."""
    agent = await _agent(controller, tmp_path)
    running = await _waiting_engine(controller, tmp_path / "go", "exit 0")
    parent = _parent(running.pid or 0)
    await agent.crash()
    journal = Journal(tmp_path / "data")
    (record,) = journal.live()
    journal.record(replace(record, state="exited", reason="gone", order=None))
    journal.close()
    agent = await _agent(controller, tmp_path)  # it kills the engine as a stray
    await _until(lambda: not parent.is_running() or parent.status() == psutil.STATUS_ZOMBIE)
    assert not psutil.pid_exists(running.pid or 0)
    await agent.stop()


async def test_an_end_is_recorded_on_a_full_disk(controller: ControllerDouble, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk:
        agent = await _agent(controller, disk.folder)
        running = await _waiting_engine(controller, tmp_path / "go", "exit 6")
        await agent.crash()
        disk.fill()
        (tmp_path / "go").touch()
        await _until(lambda: _ended(running.pid or 0))
        await asyncio.sleep(0.2)
        disk.free()
        agent = await _agent(controller, disk.folder)
        assert (await controller.state("i-1", "exited")).exit_code == 6
        await agent.stop()
