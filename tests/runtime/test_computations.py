"""Computations with real children: cancels, and a quick one behind a hundred slow ones."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from controller.runtime.child import ChildError, ChildTimeout
from controller.runtime.clock import SystemClock
from controller.runtime.computations import Computations
from controller.runtime.slots import Work
from runtime.computation_witness import MEMORY, Witness, children, sleeping
from runtime.polling import until


@pytest.fixture
def witness() -> Witness:
    return Witness()


@pytest.fixture
async def computations(witness: Witness) -> AsyncIterator[Computations]:
    subject = Computations(witness.on_done, clock=SystemClock(), metrics=witness, pool_size=4)
    yield subject
    await subject.aclose()
    assert children() == []
    assert witness.balanced()


async def test_results_and_errors_come_from_real_children(computations: Computations, witness: Witness) -> None:
    computations.start("good", Work("analysis", "g", "runtime.child_targets:echo", {"a": 1}, 30, MEMORY))
    computations.start("bad", Work("analysis", "b", "runtime.child_targets:raise_busy", "later", 30, MEMORY))
    computations.start("slow", sleeping("s", 60, deadline_s=0.5))
    await until(lambda: len(witness.reported) == 3)
    reported = {owner: result for owner, _, result in witness.reported}
    assert reported["good"] == {"a": 1}
    assert isinstance(reported["bad"], ChildError)
    assert reported["bad"].retryable
    assert isinstance(reported["slow"], ChildTimeout)


async def test_a_cancel_kills_the_child_soon_and_is_measured(
    computations: Computations, witness: Witness, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    computations.start(
        "a", Work("analysis", "h", "runtime.child_targets:announce_and_sleep", str(pid_file), 60, MEMORY)
    )
    await until(lambda: pid_file.exists() and pid_file.read_text())
    committed_at = SystemClock().now() - timedelta(seconds=3)
    began = time.perf_counter()
    computations.cancel("a", committed_at=committed_at)
    await until(lambda: not computations.in_flight)
    took = time.perf_counter() - began
    assert not psutil.pid_exists(int(pid_file.read_text()))
    assert took < 0.5
    assert 3 <= witness.cancels[0] < 3.5
    assert witness.counts == {"started": 1, "cancelled": 1}


async def test_one_quick_behind_a_hundred_slow_is_done_within_five_seconds(
    computations: Computations, witness: Witness
) -> None:
    for n in range(100):
        computations.start(n, sleeping(f"slow-{n}", 2))
    await asyncio.sleep(0.2)
    began = time.perf_counter()
    computations.start("quick", sleeping("quick", 0.05))
    await until(lambda: "quick" in witness.owners)
    assert time.perf_counter() - began < 5
    assert len(children()) <= 4


async def test_closing_kills_them_all(computations: Computations, witness: Witness) -> None:
    for n in range(20):
        computations.start(n, sleeping(str(n), 60))
    await asyncio.sleep(0.3)
    assert len(children()) == 4
    await computations.aclose()
    assert children() == []
    assert witness.counts == {"started": 20, "cancelled": 20}
