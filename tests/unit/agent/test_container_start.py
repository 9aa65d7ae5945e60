"""A start that is given up: nothing of it can run, and Docker is waited for only where it must be."""

import asyncio
from typing import Any

import pytest

from agent.containers import container
from agent.containers.container import ContainerStart
from agent.containers.docker_engine import DockerAwayError, DockerRefusalError


class HangingEngine:
    """Hangs in one call, and then does it all the same, as Docker does when a client has gone."""

    def __init__(self, hangs_in: str) -> None:
        self.hangs_in = hangs_in
        self.hanging = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.containers: set[str] = set()
        self.running: set[str] = set()

    async def create(self, name: str, _config: dict[str, Any]) -> None:
        await self._maybe_hang("create")
        if name in self.containers:
            raise DockerRefusalError(409, "in use")
        self.containers.add(name)

    async def start(self, name: str) -> None:
        await self._maybe_hang("start")
        self.running.add(name)

    async def remove(self, name: str) -> None:
        if self.hanging.is_set() and not self.goes_on.is_set():
            raise DockerAwayError("no answer within 120 s")
        self.containers.discard(name)
        self.running.discard(name)

    async def inspect(self, name: str) -> dict[str, Any] | None:
        return {} if name in self.containers else None

    async def _maybe_hang(self, call: str) -> None:
        if call == self.hangs_in:
            self.hanging.set()
            await self.goes_on.wait()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_REMOVE_RETRY_S", 0.01)
    monkeypatch.setattr(container, "_REPORT_AFTER_S", 0.05)


async def given_up(engine: HangingEngine) -> tuple[asyncio.Task[None], list[str], ContainerStart]:
    start = ContainerStart(engine, "c", lambda _init: {})  # type: ignore[arg-type]
    running = asyncio.create_task(start.run())
    await engine.hanging.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    told: list[str] = []
    return asyncio.create_task(start.give_up(told.append)), told, start


async def test_what_docker_was_only_asked_to_create_is_not_waited_for() -> None:
    engine = HangingEngine("create")
    giving_up, told, start = await given_up(engine)
    async with asyncio.timeout(5):
        await giving_up
    assert (told, start.done, engine.running) == ([], False, set())


async def test_what_docker_was_asked_to_start_is_waited_for_until_it_is_gone() -> None:
    engine = HangingEngine("start")
    giving_up, told, start = await given_up(engine)
    async with asyncio.timeout(5):
        while not told:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    assert not giving_up.done(), "it may run"
    assert "it may run until Docker has removed it" in told[0]
    engine.running.add("c")
    engine.goes_on.set()
    async with asyncio.timeout(5):
        await giving_up
    assert (engine.containers, engine.running, start.done) == (set(), set(), False)


async def test_one_of_the_same_name_may_run_until_it_is_gone() -> None:
    engine = HangingEngine("")
    engine.containers, engine.running = {"c"}, {"c"}
    start = ContainerStart(engine, "c", lambda _init: {})  # type: ignore[arg-type]
    await start.run()
    assert (start.done, engine.running) == (True, {"c"})


async def test_a_start_that_was_never_asked_of_docker_ends_at_once() -> None:
    start = ContainerStart(HangingEngine("create"), "c", lambda _init: {})  # type: ignore[arg-type]
    await start.give_up(lambda _text: None)
