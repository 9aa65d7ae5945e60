"""Load while engines die, keys change, agents and gateways restart and a model sleeps and wakes.

Every request has one end, and none runs twice.
"""

import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from support.processes.cluster import Cluster
from support.processes.gateway_soak import Account, Kind, Seen, Soak

GROWTH_MIB = 24.0


@pytest.mark.parametrize(
    ("seconds", "fault_every_s"),
    [
        pytest.param(25.0, 2.0, marks=[pytest.mark.cases, pytest.mark.timeout(300)]),
        pytest.param(1800.0, 10.0, marks=[pytest.mark.nightly, pytest.mark.timeout(3000)]),
    ],
)
async def test_every_request_has_one_end(
    cluster: Cluster, tmp_path: Path, seconds: float, fault_every_s: float
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    quick = seconds < 60
    soak = Soak(cluster, tmp_path / "journal", random.Random(seed), quick=quick)  # noqa: S311 - faults, not secrets
    await soak.start()
    await soak.run(seconds, fault_every_s)
    account = soak.account()
    wakes = len((await cluster.get("/events?reason=woken&limit=1000"))["items"])
    told = f"seed {seed}, faults {dict(soak.faults)}, {wakes} wakes, {account.summary()}"
    print(told)  # noqa: T201 - pytest shows it where the test fails
    assert account.violations() == [], told
    whole = sum(seen.end == "whole" for seen in soak.seen)
    assert whole >= len(soak.seen) / 4, told
    assert whole >= 4 * seconds, told
    assert wakes >= max(1, seconds / 120), told

    await soak.all_run()
    await cluster.until(lambda: _nothing_open(soak), "no engine has an open request", 10)
    await cluster.audit()
    third = max(1, len(soak.memory_mib) // 3)
    early, late = statistics.median(soak.memory_mib[:third]), statistics.median(soak.memory_mib[-third:])
    assert late - early <= GROWTH_MIB, (early, late, told)


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
