"""`gpuward up` whose terminal closes, or whose output nothing takes any more: it leaves no engine running."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from cli.terminal.streams import go_on_without_stdout, open_streams
from cli.up import startup
from cli.up.progress import Progress
from cli.up.startup import up
from support.standins.api import ApiDouble, serving
from support.standins.up_daemons import FakeDaemons


@pytest.fixture
def fakes(tmp_path: Path):
    with serving(ApiDouble()) as double:
        yield FakeDaemons(double, tmp_path)


async def run_up(fakes: FakeDaemons, progress: Progress, *signals: int) -> int:
    """Runs `up` until both agents are asked to start, then sends these signals."""
    started = asyncio.Event()
    fakes.on_agent = lambda _start: started.set() if len(fakes.agents) == 2 else None
    running = asyncio.create_task(up(fakes.options(), fakes.daemons, progress))
    async with asyncio.timeout(30):
        await started.wait()
        for number in signals:
            os.kill(os.getpid(), number)
        return await running


async def test_a_closed_terminal_stops_everything_in_order(fakes):
    """A hang-up comes twice."""
    killed: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(startup, "kill_engines", lambda folder: killed.append(folder) or 0)
        assert await run_up(fakes, Progress(), signal.SIGHUP, signal.SIGHUP) == 0
    assert sorted(fakes.log) == ["controller down", "gpu-1 down", "gpu-2 down"]
    assert not killed


async def test_a_hang_up_that_is_ignored_stops_nothing(fakes):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = asyncio.create_task(run_up(fakes, Progress(), signal.SIGHUP))
        done, _ = await asyncio.wait({running}, timeout=1.0)
        assert not done
        os.kill(os.getpid(), signal.SIGINT)
        assert await running == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


class Mute(Progress):
    """Fails once it has more to say than that it starts."""

    def print(self, text: str) -> None:
        if "topping" in text:
            raise OSError("nowhere to print")


async def test_all_is_stopped_although_nothing_can_be_printed(fakes):
    with pytest.raises(OSError, match="nowhere"):
        await run_up(fakes, Mute(), signal.SIGINT)
    assert fakes.log[-1] == "controller down"
    assert len(fakes.log) == 3


@pytest.mark.parametrize("terminal", [False, True])
async def test_it_goes_on_without_a_reader_of_its_stdout(fakes, monkeypatch, terminal):
    """On a terminal there is a spinner, which a thread of its own draws."""
    reader, unread = os.pipe()
    os.close(reader)
    with os.fdopen(unread, "w") as lost, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", lost)
        patch.setattr(sys, "stderr", lost)
        if terminal:
            patch.setenv("FORCE_COLOR", "1")
        open_streams()
        go_on_without_stdout()
        assert await run_up(fakes, Progress(), signal.SIGINT) == 0
        sys.stdout.flush()
    assert sorted(fakes.log) == ["controller down", "gpu-1 down", "gpu-2 down"]
