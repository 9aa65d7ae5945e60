"""The watch of a container: an unknown state is never an end."""

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.containers import container as watched
from agent.containers import log_copy
from agent.containers.container import Container
from agent.containers.docker_engine import DockerAwayError, DockerRefusalError
from agent.containers.log_copy import LogCopy
from agent.decide import containers
from agent.processes.procfs import start_ticks

PID = os.getpid()
LONG_GONE = (PID, 1)  # the pid is another process's now
ID = "a" * 64
RUNNING = {"Id": ID, "State": {"Status": "running", "Running": True, "Pid": PID}}
EXITED = {"State": {"Status": "exited", "ExitCode": 3}}


class FakeEngine:
    """Answers in turn; the last answer stays."""

    address = "unix:///nowhere"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.opened = 0
        self.removed = False

    async def inspect(self, _name: str) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return None if self.removed else answer

    async def wait(self, _name: str) -> None:
        await asyncio.sleep(0)

    async def signal(self, _name: str, _signal: str) -> None: ...

    async def remove(self, _name: str) -> None:
        self.removed = True

    async def log(self, _name: str, _since: str, _silent_s: float) -> AsyncGenerator[bytes, None]:
        self.opened += 1
        yield b"2026-11-22T21:40:00Z said\n"


class BrokenEngine(FakeEngine):
    """Answers all with errors."""

    async def signal(self, _name: str, _signal: str) -> None:
        raise DockerRefusalError(500, "broken")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_RETRY_S", (0.001,))
    monkeypatch.setattr(containers, "AWAY_S", 0.0)
    monkeypatch.setattr(containers, "ERRORS_S", 0.05)


def _watch(
    engine: Any,
    tmp_path: Path,
    pid: tuple[int, int | None] | None = None,
    on_pid: Callable[[int, int | None], None] = lambda _pid, _ticks: None,
    **more: bool,
) -> Container:
    found = Container(engine, "c", LogCopy(tmp_path / "1-0.log"), on_pid, bridge=False, known=False, **more)
    found.open(*(pid or (None, None)))
    return found


async def _asked(engine: FakeEngine, container: Container, times: int = 5) -> None:
    async with asyncio.timeout(20):
        while engine.asked < times and not container.exited.is_set():  # noqa: ASYNC110 - the fake has no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "answer",
    [
        DockerRefusalError(500, "broken"),
        {},
        {"State": {}},
        {"State": {"Status": "odd"}},
        {"State": {"Running": True, "Pid": "x"}},
        ValueError("odd"),
    ],
)
async def test_an_unknown_state_keeps_the_watch_going(tmp_path: Path, answer: Any) -> None:
    engine = FakeEngine(answer)
    container = _watch(engine, tmp_path)
    await _asked(engine, container)
    assert not container.exited.is_set()
    assert container.is_unknown
    engine.answers = [EXITED]
    async with asyncio.timeout(20):
        await container.exited.wait()
    assert container.exit_code == 3
    await container.aclose()


async def test_one_that_is_created_is_removed_before_it_counts_as_gone(tmp_path: Path) -> None:
    engine = FakeEngine({"State": {"Status": "created"}})
    container = _watch(engine, tmp_path)
    async with asyncio.timeout(20):
        await container.exited.wait()
    assert engine.removed
    assert engine.asked > 1
    assert container.end == "gone"
    await container.aclose()


async def test_one_whose_process_runs_is_not_gone_where_docker_does_not_know_it(tmp_path: Path) -> None:
    engine = FakeEngine(None)
    container = _watch(engine, tmp_path, (PID, start_ticks(PID)))
    await _asked(engine, container)
    assert not container.exited.is_set()
    await container.aclose()


BROKEN = DockerRefusalError(500, "layer does not exist")


@pytest.mark.parametrize("error", [DockerAwayError("away"), BROKEN])
@pytest.mark.parametrize(
    ("pid", "earlier_boot", "ended"),
    [
        (None, False, False),
        ((PID, None), False, False),
        ((PID, start_ticks(PID)), False, False),
        (LONG_GONE, False, True),
        ((PID, start_ticks(PID)), True, True),
    ],
)
async def test_an_end_while_docker_does_not_say_it(
    tmp_path: Path, error: Exception, pid: tuple[int, int | None] | None, *, earlier_boot: bool, ended: bool
) -> None:
    engine = FakeEngine(error)
    container = _watch(engine, tmp_path, pid, earlier_boot=earlier_boot)
    await _asked(engine, container, 80)
    if ended:
        async with asyncio.timeout(20):
            await container.exited.wait()
        assert (container.end, container.exit_code) == ("gone", None)
        says = "does not answer" if isinstance(error, DockerAwayError) else "answers: layer does not exist"
        assert container.end_note.endswith(f"and Docker {says}; how it ended is unknown")
    assert container.exited.is_set() == ended
    await container.aclose()


async def test_one_that_was_killed_by_its_pid_has_ended_though_docker_answers_with_errors(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "60")
    container = _watch(BrokenEngine(BROKEN), tmp_path, (process.pid, start_ticks(process.pid)))
    assert await container.kill(20.0) == ""
    assert f"its first process {process.pid} is gone" in container.end_note
    assert await process.wait() == -9
    await container.aclose()


async def test_a_pid_that_cannot_be_noted_is_told_again(tmp_path: Path) -> None:
    told: list[int] = []

    def on_pid(pid: int, _ticks: int | None) -> None:
        told.append(pid)
        if len(told) == 1:
            raise OSError("disk full")

    engine = FakeEngine(RUNNING)
    container = _watch(engine, tmp_path, on_pid=on_pid)
    await _asked(engine, container)
    engine.answers = [EXITED]
    async with asyncio.timeout(20):
        await container.exited.wait()
    assert told == [PID, PID]
    await container.aclose()


async def test_one_that_docker_does_not_know_is_killed_by_its_pid(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "60")
    container = _watch(FakeEngine(None), tmp_path, (process.pid, start_ticks(process.pid)))
    assert await container.kill(20.0) == ""
    assert await process.wait() == -9
    await container.aclose()


async def test_a_log_that_cannot_be_written_is_read_again_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copy, "_RETRY_S", (60.0,))
    (tmp_path / "1-0.log").mkdir()  # no file can be opened there
    engine = FakeEngine(RUNNING)
    container = _watch(engine, tmp_path)
    async with asyncio.timeout(20):
        while not engine.opened:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    assert engine.opened == 1
    await container.aclose()


async def test_another_process_with_the_pid_that_docker_says_is_left_alone(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec("sleep", "60")
    told: list[tuple[int, int | None]] = []
    answer = {"Id": ID, "State": {"Status": "running", "Running": True, "Pid": process.pid}}
    engine = BrokenEngine(answer)
    container = _watch(engine, tmp_path, (process.pid, start_ticks(process.pid)), on_pid=lambda *of: told.append(of))
    await _asked(engine, container)
    engine.answers = [BROKEN]
    assert "pid" in await container.kill(0.5)
    assert process.returncode is None
    assert told == [(process.pid, None)]
    process.kill()
    await process.wait()
    await _asked(engine, container, 80)
    assert not container.exited.is_set()
    await container.aclose()


async def test_the_watch_goes_on_where_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(_pid: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    engine = BrokenEngine(BROKEN)
    container = _watch(engine, tmp_path, LONG_GONE)
    monkeypatch.setattr(watched, "read_process", no_file)
    monkeypatch.setattr(watched, "start_ticks", no_file)
    await _asked(engine, container, 80)
    assert "pid" in await container.kill(0.2)
    assert not container.exited.is_set()
    engine.answers = [EXITED]
    async with asyncio.timeout(20):
        await container.exited.wait()
    assert (container.end, container.exit_code) == ("exit", 3)
    await container.aclose()


async def test_a_log_that_docker_refuses_is_asked_for_ever_more_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoLog(FakeEngine):
        async def log(self, name: str, since: str, silent_s: float) -> AsyncGenerator[bytes, None]:
            async for _ in super().log(name, since, silent_s):
                raise BROKEN
                yield b""

    monkeypatch.setattr(log_copy, "_RETRY_S", (0.001, 0.001, 60.0))
    engine = NoLog(RUNNING)
    container = _watch(engine, tmp_path)
    await _asked(engine, container, 200)
    assert engine.opened == 3
    await container.aclose()


@pytest.mark.parametrize(("mode", "proxied"), [("host", False), ("gpuward-engines", True), (None, True)])
async def test_the_network_that_it_has_counts_not_the_one_that_was_ordered(
    tmp_path: Path, mode: str | None, proxied: bool
) -> None:
    engine = FakeEngine({**RUNNING, "HostConfig": {"NetworkMode": mode}} if mode else RUNNING)
    container = Container(
        engine, "c", LogCopy(tmp_path / "1-0.log"), lambda _pid, _ticks: None, bridge=True, known=False
    )
    container.open()
    await _asked(engine, container)
    assert container.is_proxied is proxied
    await container.aclose()
