"""What many agents report together costs as much as it is, and not its number times that of the connections."""

import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controller.hub import reports as module
from controller.hub.hub import Hub
from controller.hub.reports import ReportWriter
from controller.runtime.clock import SystemClock
from controller.store.deployments.processes import SessionReport, Written
from rig.agent_messages import process

FEW, TIMES = 200, 15
LIMIT = 4 * TIMES  # what is quadratic reaches TIMES² as it grows


class NoDatabase:
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield


class Connected:
    """What is used of a session."""

    number, over = 1, False

    def __init__(self, n: int) -> None:
        self.worker_id = self.name = f"w-{n}"
        self.orphans: dict[Any, Any] = {}
        self.strays: dict[Any, Any] = {}
        self.unread: frozenset[Any] = frozenset()

    def send(self, _: object) -> None:
        pass


def session(n: int) -> Any:
    return Connected(n)


async def growth(work: Callable[[int], Awaitable[float]]) -> float:
    """How many times as much the work on TIMES as many costs; the least of three each."""
    costs = []
    for number in (FEW, FEW * TIMES):
        gc.collect()
        costs.append(min([await work(number) for _ in range(3)]))
    return costs[1] / costs[0]


async def test_found_processes_are_given_to_their_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> set[str]:
        return set()

    async def lock_all(_: Any, sessions: list[tuple[str, int]]) -> set[tuple[str, int]]:
        return set(sessions)

    async def find_all(_: Any, reports: list[SessionReport]) -> Written:
        return Written(orphans=reports)

    for owner, name in ((module, "write_events"), (module, "notify"), (module, "read_term")):
        monkeypatch.setattr(owner, name, nothing)
    monkeypatch.setattr(module.commands, "write_answers", nothing)
    monkeypatch.setattr(module.processes, "lock_sessions", lock_all)
    monkeypatch.setattr(module.processes, "write_reports", find_all)

    async def write(number: int) -> float:
        database: Any = NoDatabase()
        writer = ReportWriter(database, SystemClock(), lambda _: None)
        sessions = [session(n) for n in range(number)]
        for one in sessions:
            writer.report(one, process(f"of-{one.worker_id}"))
        begun = time.process_time()
        await writer._write(writer.queue.take(number))
        cost_s = time.process_time() - begun
        assert all([key[0] for key in one.orphans] == [f"of-{one.worker_id}"] for one in sessions)
        return cost_s

    assert await growth(write) < LIMIT


async def test_a_decision_is_looked_for_in_its_session_alone() -> None:
    async def wake_each(number: int) -> float:
        nothing: Any = None
        hub = Hub(nothing, SystemClock(), instance_id="c", secrets=nothing, sample_s=10.0, keep=nothing)
        hub._sessions.update({one.worker_id: one for one in map(session, range(number))})
        hub._sessions["w-0"].orphans[("i", 1, 0)] = process("i")
        begun = time.process_time()
        for worker_id in list(hub._sessions):
            hub.wake("decided", worker_id)
        cost_s = time.process_time() - begun
        hub.wake("decided", "unknown")
        assert [len(one) for one in hub._reports.queue.take(10)] == [1]
        return cost_s

    assert await growth(wake_each) < LIMIT
