"""An engine starts with its own words and variables once its agent knows of it; or a reason says why it cannot."""

import asyncio
import os
import resource
import signal
from pathlib import Path

import psutil
import pytest

from agent.processes.engine_launch import EngineLaunch
from support.standins.controller import ControllerDouble, start_order


@pytest.mark.usefixtures("agent")
async def test_an_agent_with_very_many_open_files_starts_and_stops_engines(controller: ControllerDouble) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < 2048:
        pytest.skip("this host allows few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        await controller.start_order("i-1", start_order("sleep", "1000"))
        await controller.state("i-1", "running")
        await controller.stop_order("i-1")
        assert (await controller.state("i-1", "exited")).exit_code == -signal.SIGTERM
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_nothing_runs_before_the_agents_word(tmp_path: Path) -> None:
    """An agent that dies during a start leaves nothing that it does not know."""
    done = tmp_path / "done"
    launch = EngineLaunch(
        ["touch", str(done)], dict(os.environ), work=tmp_path, log=tmp_path / "log", record=tmp_path / "end"
    )
    async with launch:
        assert os.getsid(launch.pid)  # it exists, and waits
        await asyncio.sleep(0.2)
        assert not done.exists()
    await launch.parent.release()
    assert not psutil.pid_exists(launch.pid)
    assert not done.exists()


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["no-such-program"], "No such file or directory: 'no-such-program'"),
        (["/etc/passwd"], "Permission denied: '/etc/passwd'"),
        (["bash/none"], "No such file or directory: 'bash/none'"),
    ],
)
@pytest.mark.usefixtures("agent")
async def test_a_program_that_cannot_be_run_is_named(argv: list[str], named: str, controller: ControllerDouble) -> None:
    await controller.start_order("i-1", start_order(*argv))
    ended = await controller.state("i-1", "exited")
    assert (ended.reason, ended.exit_code, ended.pid) == ("spawn_failed", None, None)
    assert named in ended.message


@pytest.mark.usefixtures("agent")
async def test_words_and_variables_arrive_as_they_are(controller: ControllerDouble, tmp_path: Path) -> None:
    odd = "a=b\nc\t ü"
    out = tmp_path / "out"
    script = f'printf "%s|%s" "$1" "$ODD" > {out}'
    order = start_order("bash", "-c", script, "bash", odd, env={"ODD": "x=\n=y", "EMPTY": ""})
    await controller.start_order("i-1", order)
    assert (await controller.state("i-1", "exited")).exit_code == 0
    assert out.read_text() == f"{odd}|x=\n=y"


@pytest.mark.usefixtures("agent")
async def test_a_missing_program_is_named_also_past_a_closed_folder(
    controller: ControllerDouble, tmp_path: Path
) -> None:
    """Such a folder of the search path makes the search end in "Permission denied", unless root searches."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    try:
        await controller.start_order("i-1", start_order("no-such-program", env={"PATH": f"{closed}:/usr/bin"}))
        ended = await controller.state("i-1", "exited")
    finally:
        closed.chmod(0o700)
    assert "engine_missing" in ended.message
