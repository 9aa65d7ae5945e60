"""The reconcile loop: the effect of each outcome; a bad key affects only itself; no key is lost."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import asyncpg
import pytest

from controller.domain.effects import StaleError
from controller.runtime.clock import SystemClock
from controller.runtime.loop import LoopSettings, ReconcileLoop
from controller.runtime.outcome import Backoff, Done, Outcome, Requeue, Retry, RetryableError, Terminal, TerminalError

pytestmark = pytest.mark.looptime

Answer = Callable[[str], Outcome]
NO_RESYNC = LoopSettings(workers=2, resync_s=1e6, backoff=Backoff(base_s=1, max_s=8), step_timeout_s=5)


class Metrics:
    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.depths: list[int] = []

    def observed(self, kind: str, outcome: str, seconds: float) -> None:
        assert kind == "thing"
        assert seconds >= 0
        self.outcomes[outcome] += 1

    def depth(self, kind: str, n: int) -> None:
        assert kind == "thing"
        self.depths.append(n)


class Things:
    """A reconciler that records each step as (time, keys)."""

    kind = "thing"

    def __init__(self, answer: Answer, existing: Collection[str] = ()) -> None:
        self.answer = answer
        self.existing = existing
        self.lists = 0
        self.list_error: Exception | None = None
        self.steps: list[tuple[float, list[str]]] = []
        self.running: Counter[str] = Counter()
        self.pause: Callable[[Sequence[str]], Awaitable[None]] = lambda _: asyncio.sleep(0)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        self.steps.append((asyncio.get_running_loop().time(), list(keys)))
        self.running.update(keys)
        assert max(self.running.values()) == 1
        try:
            await self.pause(keys)
            return {key: self.answer(key) for key in keys}
        finally:
            self.running.subtract(keys)

    async def list_keys(self) -> Collection[str]:
        self.lists += 1
        if self.list_error is not None:
            raise self.list_error
        return self.existing

    def times(self, key: str) -> list[float]:
        return [time for time, keys in self.steps if key in keys]


class Running:
    def __init__(self, things: Things, settings: LoopSettings) -> None:
        self.metrics = Metrics()
        self.reported: list[tuple[object, ...]] = []
        self.report_fails = False
        self.loop: ReconcileLoop[str] = ReconcileLoop(
            things,
            clock=SystemClock(),
            rng=random.Random(7),  # noqa: S311 - reproducible
            metrics=self.metrics,
            on_quarantine=self._quarantined,
            on_terminal=self._terminal,
            settings=settings,
        )

    async def _quarantined(self, key: str, error: str, attempts: int) -> None:
        if self.report_fails:
            raise ConnectionError("the database is away")
        self.reported.append(("quarantine", key, error, attempts))

    async def _terminal(self, key: str, error: str) -> None:
        self.reported.append(("terminal", key, error))


@asynccontextmanager
async def running(things: Things, settings: LoopSettings = NO_RESYNC) -> AsyncIterator[Running]:
    subject = Running(things, settings)
    task = asyncio.create_task(subject.loop.run())
    await asyncio.sleep(0.01)
    yield subject
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def raising(error: Exception) -> Answer:
    def answer(_key: str) -> Outcome:
        raise error

    return answer


async def test_everything_that_exists_is_reconciled_at_the_start_in_batches() -> None:
    things = Things(lambda _: Done(), [f"k{n}" for n in range(600)])
    async with running(things) as subject:
        assert sorted(len(keys) for _, keys in things.steps) == [88, 256, 256]
        assert subject.metrics.outcomes == {"done": 600}
        assert subject.loop.depth == 0


async def test_a_hint_leads_to_one_step_and_requeue_to_another() -> None:
    answers = iter([Requeue(30), Done()])
    things = Things(lambda _: next(answers))
    async with running(things) as subject:
        subject.loop.add("a")
        await asyncio.sleep(100)
    first, second = things.times("a")
    assert second - first == pytest.approx(30)


async def test_steps_of_one_key_never_overlap_and_a_hint_in_between_runs_once_more() -> None:
    things = Things(lambda _: Done())
    things.pause = lambda _: asyncio.sleep(2)
    async with running(things) as subject:
        for _ in range(10):
            subject.loop.add("a")
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)
    assert len(things.times("a")) == 2


async def test_failures_back_off_then_quarantine_which_is_reported_once() -> None:
    things = Things(lambda _: Retry("the disk is full", "DiskError"))
    settings = LoopSettings(
        resync_s=1e6, backoff=Backoff(base_s=1, max_s=64), quarantine_after=5, quarantine_s=300, step_timeout_s=5
    )
    async with running(things, settings) as subject:
        subject.loop.add("a")
        await asyncio.sleep(1000)
    times = things.times("a")
    waits = [after - before for before, after in pairwise(times)]
    assert all(wait <= step for wait, step in zip(waits[:4], (1, 2, 4, 8), strict=True))
    assert all(270 <= wait <= 330 for wait in waits[4:])
    assert subject.reported == [("quarantine", "a", "the disk is full", 5)]


async def test_a_quarantine_whose_report_failed_is_reported_at_the_next_attempt() -> None:
    things = Things(lambda _: Retry("no"))
    settings = LoopSettings(resync_s=1e6, backoff=Backoff(base_s=1, max_s=1), quarantine_after=2, quarantine_s=100)
    async with running(things, settings) as subject:
        subject.report_fails = True
        subject.loop.add("a")
        await asyncio.sleep(50)
        assert len(things.times("a")) == 2
        subject.report_fails = False
        await asyncio.sleep(100)
    assert subject.reported == [("quarantine", "a", "no", 3)]


async def test_a_full_disk_of_the_database_quarantines_no_key() -> None:
    things = Things(raising(asyncpg.DiskFullError("full")))
    settings = LoopSettings(resync_s=1e6, backoff=Backoff(base_s=1, max_s=8), quarantine_after=3, quarantine_s=1e5)
    async with running(things, settings) as subject:
        subject.loop.add("a")
        await asyncio.sleep(1000)
        tries, reported = len(things.times("a")), list(subject.reported)
        things.answer = lambda _: Retry("a fault of its own")
        await asyncio.sleep(100)
    assert reported == []
    assert tries > 100
    assert subject.reported != [], "its own failures do"


async def test_a_hint_ends_a_quarantine_and_success_resets_it() -> None:
    outcome: list[Outcome] = [Retry("no")]
    things = Things(lambda _: outcome[0])
    settings = LoopSettings(resync_s=1e6, backoff=Backoff(base_s=1, max_s=1), quarantine_after=2, quarantine_s=1e5)
    async with running(things, settings) as subject:
        subject.loop.add("a")
        await asyncio.sleep(50)
        assert len(things.times("a")) == 2
        outcome[0] = Done()
        subject.loop.add("a")
        await asyncio.sleep(1)
        assert len(things.times("a")) == 3
        outcome[0] = Retry("no")
        subject.loop.add("a")
        await asyncio.sleep(50)
    assert len(things.times("a")) == 5
    assert len(subject.reported) == 2


async def test_a_terminal_error_is_reported_and_waits_for_a_hint() -> None:
    things = Things(lambda _: Terminal("no such model"), ["a"])
    async with running(things, LoopSettings(resync_s=10)) as subject:
        await asyncio.sleep(100)
        assert things.lists > 5
        assert len(things.times("a")) == 1
        subject.loop.add("a")
        await asyncio.sleep(1)
        assert len(things.times("a")) == 2
        subject.loop.add_all()
        await asyncio.sleep(1)
        assert len(things.times("a")) == 3
        assert subject.reported == [("terminal", "a", "no such model")] * 3
        things.existing = []
        await asyncio.sleep(30)
        assert not subject.loop._failures


async def test_a_steps_errors_are_classified_by_type() -> None:
    things = Things(lambda _: Done())
    async with running(things) as subject:
        for error in (RetryableError("away"), TerminalError("wrong"), KeyError("oops")):
            things.answer = raising(error)
            subject.loop.add(type(error).__name__)
            await asyncio.sleep(0.001)
        things.answer = lambda _: Done()
        await asyncio.sleep(20)
    assert subject.metrics.outcomes == {"retry": 2, "terminal": 1, "done": 2}
    assert subject.reported == [("terminal", "TerminalError", "wrong")]


async def test_a_bad_key_affects_only_itself() -> None:
    def answer(key: str) -> Outcome:
        if key == "poison":
            raise ZeroDivisionError("poison")
        return Done()

    things = Things(answer, ["a", "poison", "b"])
    async with running(things) as subject:
        assert [keys for _, keys in things.steps] == [["a", "poison", "b"], ["a"], ["poison"], ["b"]]
        assert subject.metrics.outcomes == {"done": 2, "retry": 1}


async def test_a_key_that_hangs_times_out_alone() -> None:
    things = Things(lambda _: Done(), ["a", "hangs", "b"])

    async def pause(keys: Sequence[str]) -> None:
        if "hangs" in keys:
            await asyncio.sleep(1e5)

    things.pause = pause
    async with running(things) as subject:
        await asyncio.sleep(10.5)
        assert subject.metrics.outcomes == {"done": 2, "retry": 1}


async def test_a_timeout_inside_a_step_differs_from_the_steps_deadline() -> None:
    things = Things(raising(TimeoutError("the disk is slow")))
    settings = LoopSettings(resync_s=1e6, quarantine_after=1)
    async with running(things, settings) as subject:
        subject.loop.add("a")
        await asyncio.sleep(1)
        assert subject.reported == [("quarantine", "a", "the disk is slow", 1)]


async def test_a_forgotten_key_is_retried() -> None:
    things = Things(lambda _: Done())
    things.step = lambda _: asyncio.sleep(0, {})  # type: ignore[method-assign,assignment] # a reconciler with a bug
    settings = LoopSettings(resync_s=1e6, quarantine_after=1)
    async with running(things, settings) as subject:
        subject.loop.add("a")
        await asyncio.sleep(1)
        assert subject.reported == [("quarantine", "a", "the step returned no outcome for this key", 1)]


async def test_stale_steps_are_retried_at_once_then_with_small_delays_and_are_no_failures() -> None:
    things = Things(raising(StaleError("generation moved")))
    async with running(things) as subject:
        subject.loop.add("a")
        await asyncio.sleep(0.001)
        assert len(things.times("a")) == 4
        await asyncio.sleep(100)
        assert 10 < len(things.times("a")) < 200
        assert set(subject.metrics.outcomes) == {"stale"}
        assert not subject.reported


async def test_the_resync_finds_changes_without_a_hint() -> None:
    things = Things(lambda _: Done())
    async with running(things, LoopSettings(resync_s=60)):
        things.existing = ["silent"]
        await asyncio.sleep(200)
    times = things.times("silent")
    assert 2 <= len(times) <= 4
    assert 54 <= times[1] - times[0] <= 66


async def test_a_resync_that_fails_is_repeated_soon() -> None:
    things = Things(lambda _: Done(), ["a"])
    things.list_error = ConnectionError("the database is away")
    async with running(things):
        await asyncio.sleep(20)
        assert not things.steps
        things.list_error = None
        await asyncio.sleep(10)
        assert len(things.times("a")) == 1


async def test_keys_beyond_the_queues_bound_come_later() -> None:
    existing = [f"k{n}" for n in range(50)]
    things = Things(lambda _: Done(), existing)
    settings = LoopSettings(workers=1, batch_size=5, resync_s=1e6, max_keys=10)
    async with running(things, settings):
        await asyncio.sleep(100)
    assert {key for _, keys in things.steps for key in keys} == set(existing)
