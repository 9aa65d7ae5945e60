"""Engines as accounts of their own: what they cannot reach, and that the agent still looks after them."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from agent.processes.folders import InstanceFolders
from agent.state.process_records import ProcessKey
from support.processes.agents import AgentUnderTest, running_agent, settings_for
from support.standins.controller import ControllerDouble, start_order

UIDS = "64900-64919"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs engines as other accounts")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Which other accounts may pass, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="gpuward-accounts-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def agent(controller: ControllerDouble, folder: Path) -> AsyncIterator[AgentUnderTest]:
    async with running_agent(controller, folder, engine_user=UIDS) as running:
        yield running


def _log(agent: AgentUnderTest, instance: str, epoch: int = 1) -> Path:
    return InstanceFolders(agent.settings.data_dir).log(ProcessKey(instance, epoch, 0))


async def _output(controller: ControllerDouble, agent: AgentUnderTest, instance: str, script: str) -> str:
    await controller.start_order(instance, start_order("bash", "-c", script))
    await controller.state(instance, "exited")
    return _log(agent, instance).read_text()


async def test_an_engine_reads_nothing_of_the_agent_and_of_others(
    controller: ControllerDouble, agent: AgentUnderTest
) -> None:
    data = agent.settings.data_dir
    await controller.start_order("i-1", start_order("sleep", "1000", env={"HF_TOKEN": "hf-of-another"}))
    other = (await controller.state("i-1", "running")).pid
    script = f"""
        ls {data} {data}/instances {data}/instances/i-1/work {data}/instances/i-2/logs
        cat {data}/journal.sqlite {data}/journal.sqlite-wal {data}/agent.lock
        cat /proc/{os.getpid()}/environ /proc/{other}/environ /proc/{other}/maps
        cat /proc/self/fd/1
        cat {data}/instances/i-2/logs/1-0.log
        cat {data}/instances/i-2/logs/1-0.end {data}/instances/i-1/logs/1-0.end
        rm -f {data}/instances/i-2/logs/1-0.end
        true > {data}/instances/i-2/logs/1-0.end
        cat /proc/$PPID/environ /proc/$PPID/maps
        kill -9 $PPID
        kill -USR1 $PPID
        kill -9 {other} {os.getpid()}
    """
    text = await _output(controller, agent, "i-2", script)
    lines = text.splitlines()
    assert len(lines) == 22, text
    assert all("denied" in line or "not permitted" in line.lower() for line in lines), text
    assert psutil.pid_exists(other or 0)


@pytest.mark.usefixtures("agent")
async def test_a_missing_program_is_named_also_past_a_folder_closed_to_engines(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", start_order("no-such-program", env={"PATH": "/root:/usr/bin"}))
    assert "engine_missing" in (await controller.state("i-1", "exited")).message


async def test_an_engine_has_no_privileges_and_its_own_folder(
    controller: ControllerDouble, agent: AgentUnderTest
) -> None:
    script = """
        grep -E '^(Uid|Groups|NoNewPrivs|CapInh|CapPrm|CapEff|CapBnd|CapAmb)' /proc/self/status
        echo "umask $(umask)"; echo "home $HOME"; touch mine && stat -c '%u %a' . mine
        echo to-stdout >> /dev/stdout
    """
    text = await _output(controller, agent, "i-1", script)
    log = {line.split()[0]: line.partition(line.split()[0])[2].strip() for line in text.splitlines()}
    uid = log["Uid:"].split()[0]
    assert 64900 <= int(uid) < 64920
    assert log["NoNewPrivs:"] == "1"
    assert {log[name] for name in ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:")} == {"0" * 16}
    assert "0" not in log["Groups:"].split()
    assert (log["umask"], log["home"]) == ("0077", str(agent.settings.data_dir / "instances" / "i-1" / "work"))
    assert log[uid] == "600"  # of `mine`, printed after its folder
    assert "to-stdout" in text
    assert _log(agent, "i-1").stat().st_mode & 0o777 == 0o620


@pytest.mark.usefixtures("agent")
async def test_an_engine_inherits_no_file_of_the_agent_or_its_parent(controller: ControllerDouble) -> None:
    await controller.start_order("i-1", start_order("sleep", "1000"))
    pid = (await controller.state("i-1", "running")).pid or 0
    files = await asyncio.to_thread(_open_files, pid)
    assert (set(files), files["0"]) == ({"0", "1", "2"}, "/dev/null")


async def test_a_model_that_its_account_cannot_read_is_named_before_it_starts(
    controller: ControllerDouble, agent: AgentUnderTest, folder: Path
) -> None:
    model = folder / "model"
    model.mkdir(mode=0o700)
    order = start_order("bash", "-c", "echo ran", reads=(str(model),))
    await controller.start_order("i-1", order)
    ended = await controller.state("i-1", "exited", "failed")
    assert ended.message.startswith("path_unreadable: ")
    assert f" {model};" in ended.message
    assert not _log(agent, "i-1").exists() or _log(agent, "i-1").read_text() == ""
    model.chmod(0o755)
    await controller.start_order("i-1", order, epoch=2)
    await controller.state("i-1", "exited", epoch=2)
    assert _log(agent, "i-1", epoch=2).read_text() == "ran\n"


async def test_what_leaves_its_session_and_marker_is_killed_by_its_uid(
    controller: ControllerDouble, agent: AgentUnderTest
) -> None:
    script = "setsid env -i sleep 997 & sleep 0.2; pgrep -u $UID -x sleep; sleep 1000"
    await controller.start_order("i-1", start_order("bash", "-c", script))
    await controller.state("i-1", "running")
    async with asyncio.timeout(10):
        while not (text := _log(agent, "i-1").read_text()).strip():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.02)
    hidden = int(text.split()[0])
    await controller.stop_order("i-1", drain_s=0.2)
    await controller.state("i-1", "exited")
    assert not psutil.pid_exists(hidden) or psutil.Process(hidden).status() == psutil.STATUS_ZOMBIE


async def test_the_next_agent_adopts_engines_of_other_accounts(controller: ControllerDouble, folder: Path) -> None:
    first = AgentUnderTest(settings_for(controller, folder, engine_user=UIDS))
    await asyncio.wait_for(first.ready.wait(), 30)
    await controller.start_order("i-1", start_order("sleep", "1000"))
    pid = (await controller.state("i-1", "running")).pid or 0
    uid = psutil.Process(pid).uids().real
    await first.crash()
    async with running_agent(controller, folder, engine_user=UIDS):
        await controller.start_order("i-2", start_order("sleep", "1000"))
        other = (await controller.state("i-2", "running")).pid or 0
        assert psutil.Process(pid).uids().real == uid
        assert psutil.Process(other).uids().real not in (uid, 0)
        await controller.stop_order("i-1", drain_s=5)
        assert (await controller.state("i-1", "exited")).reason == "stopped"


async def test_a_program_that_the_account_cannot_reach_is_named(
    controller: ControllerDouble, agent: AgentUnderTest, folder: Path
) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    shutil.copy("/bin/true", closed / "engine")
    await controller.start_order("i-1", start_order(str(closed / "engine")))
    ended = await controller.state("i-1", "exited")
    assert ended.reason == "spawn_failed"
    assert f"which may not enter {closed}" in ended.message
    assert agent.ready.is_set()


def _open_files(pid: int) -> dict[str, str]:
    """What a process has open, by descriptor."""
    return {path.name: str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
