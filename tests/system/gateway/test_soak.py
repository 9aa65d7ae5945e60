"""A busy week, compressed: every request has one end, none runs twice, the ledger is clean, memory is flat.

Engines die, keys change, agents and gateways restart, a model sleeps and wakes, deployments and policies come and go,
and hosts are lost and drained. `make soak` runs the long one, of SOAK_MINUTES.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from support.processes.cluster import Cluster
from support.processes.gateway_soak import Soak
from support.processes.memory_watch import growth
from support.processes.request_account import Account, Kind, Seen

GROWTH_MIB = 24.0
LONG_MINUTES = 40.0  # eight hours of a busy week: a deed every three seconds in place of one in 36
MOST_MINUTES = 24 * 60.0


def long_minutes() -> float:
    """SOAK_MINUTES, or its default."""
    text = os.environ.get("SOAK_MINUTES", "") or str(LONG_MINUTES)
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 1 <= minutes <= MOST_MINUTES:
        raise pytest.UsageError(f"SOAK_MINUTES: must be 1 to {MOST_MINUTES:.0f} minutes, got {text!r}")
    return minutes


@pytest.mark.parametrize(
    ("seconds", "fault_every_s"),
    [
        pytest.param(60.0, 3.0, marks=[pytest.mark.cases, pytest.mark.timeout(480)], id="short"),
        pytest.param(
            60 * long_minutes(),
            10.0,
            marks=[pytest.mark.nightly, pytest.mark.timeout(60 * long_minutes() + 1200)],
            id="long",
        ),
    ],
)
async def test_a_busy_week(cluster: Cluster, tmp_path: Path, seconds: float, fault_every_s: float) -> None:
    seed = random.SystemRandom().randrange(10**6)
    quick = fault_every_s < 10
    soak = Soak(cluster, tmp_path / "journal", random.Random(seed), quick=quick)  # noqa: S311 - faults, not secrets
    await soak.start()
    await soak.run(seconds, fault_every_s)
    account = soak.account()
    wakes = len((await cluster.get("/events?reason=woken&limit=1000"))["items"])
    told = (
        f"seed {seed}, faults {dict(soak.faults)}, deeds {dict(soak.week.deeds)}, {wakes} wakes, {account.summary()},"
        f" memory: {soak.memory.summary()}"
    )
    print(told)  # noqa: T201 - pytest shows it where the test fails, and make soak always
    assert account.violations() == [], told
    whole = sum(seen.end == "whole" for seen in soak.seen)
    assert whole >= len(soak.seen) / 4, told
    assert whole >= 3 * seconds, told
    assert wakes >= max(1, seconds / 120), told

    await soak.all_run()
    await cluster.audit()
    await soak.week.end()
    await cluster.until(lambda: _nothing_open(soak), "no engine has an open request", 10)
    await cluster.audit()
    assert max(soak.memory.growth_mib().values()) <= GROWTH_MIB, told


async def _nothing_open(soak: Soak) -> bool:
    return not any((await soak.in_flight()).values())


@pytest.mark.parametrize(
    ("seen", "taken", "finished", "wrong"),
    [
        (("r", 200, "whole"), 1, 1, ""),
        (("r", 200, "cut"), 1, 0, ""),
        (("r", 502, "error"), 1, 0, ""),
        (("r", 502, "error"), 0, 0, ""),
        (("r", 503, "error"), 0, 0, ""),
        (("r", 200, "whole"), 2, 1, "ran 2 times"),
        (("r", 502, "error"), 2, 0, "ran 2 times"),
        (("r", 200, "whole"), 0, 0, "answered"),
        (("r", 200, "whole"), 1, 0, "answered"),
        (("r", 503, "error"), 1, 1, "refused"),
        (("r", 0, "lost"), 0, 0, "lost"),
        (("r", 0, "reset", "killed"), 1, 0, ""),
        (("r", 0, "reset", "stopped"), 0, 0, ""),
        (("r", 0, "reset", "stopped"), 1, 0, "gave no word"),
        (("r", 0, "reset", "killed"), 2, 0, "ran 2 times"),
    ],
)
def test_the_account_finds_what_is_wrong(seen: tuple[Any, ...], taken: int, finished: int, wrong: str) -> None:
    name, status, end, *code = seen
    account = Account([Seen(name, Kind("", 1), status, end, *code)], {name: taken}, {name: finished})
    found = account.violations()
    assert bool(found) == bool(wrong)
    assert not wrong or any(wrong in violation for violation in found)


def test_a_request_that_no_client_made_is_found() -> None:
    account = Account([Seen("r1", Kind("", 1), 200, "whole")], {"r1": 1, "r2": 1}, {"r1": 1})
    assert account.violations() == ["an engine ran it, and no client has seen its end: r2"]


@pytest.mark.parametrize(
    ("values", "grown"),
    [
        ([100.0] * 50, 0.0),
        ([100.0, 160.0] + [100.0] * 48, 0.0),  # a peak
        ([100.0 + n for n in range(51)], 50.0),
        ([100.0 + n + 30 * (n % 7 == 0) for n in range(1001)], 1000.0),  # a leak under peaks
        ([100.0], 0.0),
    ],
)
def test_growth_is_the_slope_without_the_peaks(values: list[float], grown: float) -> None:
    assert growth(values) == pytest.approx(grown, abs=1)
