"""Programs that end without reading what they are given, or between two questions, in both kinds of event loop."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from agent.gpus.child_reader import NvmlChild
from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.fetch_errors import FetchError
from agent.model_cache.fetch_process import FetchProcess, open_place
from agent.program_io import output_of
from support.processes.slow_start import ended, start_slowly

LOOPS = pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
ONE_ANSWER = (sys.executable, "-c", 'input(); print(\'{"driver": "580.95"}\', flush=True)')

Loop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
def slow_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start_slowly(monkeypatch)


def in_loop(loop: Loop, main: Any) -> Any:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


@LOOPS
def test_a_reader_of_gpus_that_ended_between_two_readings(loop: Loop) -> None:
    async def main() -> None:
        child = NvmlChild(ONE_ANSWER)
        assert (await child.query(b"{}\n")).driver == "580.95"
        assert child._process is not None
        await ended(child._process)
        with pytest.raises((OSError, EOFError)):
            await child.query(b"{}\n")
        await child.kill()
        assert (await child.query(b"{}\n")).driver == "580.95"
        await child.kill()

    in_loop(loop, main())


@LOOPS
@pytest.mark.usefixtures("slow_start")
def test_a_program_that_reads_nothing(loop: Loop) -> None:
    argv = [sys.executable, "-c", "print('done')"]
    assert in_loop(loop, output_of(argv, 10, given=b"something")) == ("done\n", "")


@LOOPS
@pytest.mark.usefixtures("slow_start")
def test_a_fetch_that_ends_at_once(loop: Loop, tmp_path: Path) -> None:
    async def main() -> None:
        folder = CacheFolder(tmp_path)
        folder.prepare()
        place = open_place(folder, "a/b")
        try:
            async with FetchProcess({}, {"PYTHONHOME": "/nowhere"}, place) as process:
                await process.go()
                async for _ in process.messages():
                    pass
        finally:
            place.close()

    with pytest.raises(FetchError, match="ended"):
        in_loop(loop, main())
