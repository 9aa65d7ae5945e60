"""Reservations over time: a large instance in a stream of small tasks, and turns where servers hold what it needs."""

from dataclasses import dataclass, field

import pytest

from controller.domain.admission import Holder, Holders, PendingInstance
from controller.domain.placement import Ask, Layout, Placed
from controller.scheduling.admission.admit import ReserveTimes, admit
from support.builders.fleet import GIB, Fleet

G80 = 80 * GIB
TIMES = ReserveTimes(60, 3600)
STEP_S = 5.0
HOUR_S = 3600.0


@dataclass
class Queued:
    """A pending instance, since when it is pending, and for how long it runs; None: it is a server."""

    ask: Ask
    priority: int
    since: float
    runs_s: float | None
    reserved_since: float | None = None


@dataclass
class Timeline:
    """Passes on one inventory, `step_s` apart; what is placed runs at once, and tasks end after their time."""

    fleet: Fleet
    step_s: float = STEP_S
    now: float = 0.0
    queue: list[Queued] = field(default_factory=list)
    running: dict[str, tuple[Holder, float]] = field(default_factory=dict)
    placed_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inventory = self.fleet.inventory()

    def add(self, name: str, gpus: int, *, priority: int = 10, runs_s: float | None = None, on: str = "") -> None:
        ask = Ask(name, f"d-{name}", (Layout(gpus, G80, False),), workers=(on,) if on else ())
        self.queue.append(Queued(ask, priority, self.now, runs_s))

    def run_pass(self) -> None:
        self.now += self.step_s
        for name, (holder, ends) in list(self.running.items()):
            if ends <= self.now:
                self.inventory.exclude(holder.claims)
                self.inventory.remove_load([name])
                del self.running[name]
        order = sorted(self.queue, key=lambda one: (-one.priority, one.since))
        waiting = [
            PendingInstance(
                one.ask, one.priority, waited_s=self.now - one.since,
                reserved_s=None if one.reserved_since is None else self.now - one.reserved_since,
            )
            for one in order
        ]  # fmt: skip
        holders = Holders(tuple(holder for holder, _ in self.running.values()))
        answers = list(admit(self.inventory, waiting, holders, reserve=TIMES))
        for one, answer in zip(order, answers, strict=True):
            if answer.awaits_servers and one.reserved_since is None:
                one.reserved_since = self.now
            if isinstance(answer.decision, Placed):
                self._start(one, answer.decision)

    def _start(self, one: Queued, placed: Placed) -> None:
        name, ends = placed.instance, float("inf") if one.runs_s is None else self.now + one.runs_s
        holder = Holder(
            name, one.priority, one.since, frozenset(placed.workers), placed.claims, task=one.runs_s is not None
        )
        self.running[name] = holder, ends
        self.placed_at[name] = self.now
        self.queue.remove(one)


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_a_large_one_is_not_starved_by_a_stream_of_small_tasks(gpus: int) -> None:
    """Tasks of 5 minutes fill eight GPUs, and new ones keep arriving, more than can run."""
    line = Timeline(Fleet().add("a", [G80] * 8))
    for number in range(8):
        line.add(f"t{number}", 1, runs_s=300 + 7 * number)
    line.run_pass()
    line.add("large", gpus)
    for number in range(150):
        if number % 4 == 0:
            line.add(f"s{number}", 1, runs_s=300)
        line.run_pass()
    # A task runs for at most 349 seconds, and after a minute nothing but the large one takes what ends.
    assert line.placed_at["large"] <= 349 + 3 * STEP_S
    assert any(name.startswith("s") for name in line.placed_at) is (gpus < 8), "the rest is not kept idle"


def test_a_task_that_is_already_pending_ahead_keeps_its_turn() -> None:
    line = Timeline(Fleet().add("a", [G80] * 2))
    line.add("t0", 2, runs_s=300)
    line.run_pass()
    line.add("first", 1, runs_s=100)
    line.run_pass()
    line.add("large", 2)
    for _ in range(200):
        line.run_pass()
    assert line.placed_at["first"] < line.placed_at["large"]


def test_where_servers_hold_it_the_reservation_ends_and_the_next_one_has_its_turn() -> None:
    """`first` needs all GPUs of `a`, where a server stays for ever; then `second` has an hour on `b`."""
    line = Timeline(Fleet().add("a", [G80] * 3).add("b", [G80] * 2), step_s=20.0)
    line.add("server-a", 2, on="a")
    line.add("server-b", 1, on="b")
    line.run_pass()
    line.add("first", 3)
    line.run_pass()
    line.add("second", 2)
    seen: list[tuple[bool, bool]] = []
    for _ in range(int(3 * HOUR_S / line.step_s)):
        line.run_pass()
        marked = {one.ask.instance: one.reserved_since for one in line.queue}
        seen.append((marked["first"] is not None, marked["second"] is not None))
    first, second = (next(n for n, marks in enumerate(seen) if marks[place]) * line.step_s for place in (0, 1))
    assert first == pytest.approx(60, abs=2 * line.step_s)
    assert second - first == pytest.approx(HOUR_S, abs=2 * line.step_s)
    line.add("small", 1, on="b")
    line.run_pass()
    assert "small" in line.placed_at, "no reservation outlasts its hour"


@pytest.mark.parametrize(("ends", "fits"), [("task", True), ("server", False)])
def test_equal_priorities_end_for_none_and_only_tasks_make_way_by_themselves(ends: str, fits: bool) -> None:
    line = Timeline(Fleet().add("a", [G80] * 2))
    line.add("x", 2, runs_s=600 if ends == "task" else None)
    line.run_pass()
    line.add("large", 2)
    for _ in range(200):
        line.run_pass()
    assert ("large" in line.placed_at) is fits
