"""Results are kept for as long as the files can be assumed unchanged."""

import pytest

from controller.engines.base import Analysis
from controller.leader.analyses import BRANCH_FRESH_S, FOLDER_FRESH_S, ModelCache

COMMIT = {"repo": "org/m", "revision": "a" * 40}
BRANCH = {"repo": "org/m", "revision": "main"}
FOLDER = {"path": "/m"}
SIMULATED = {"seconds": 1, "memory_mib": 5}


def analysis(payload: dict[str, object], target: str = "m:f") -> Analysis:
    return Analysis(target, payload, deadline_s=1, memory_bytes=1, hashed_as=target)


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("source", "fresh_s"),
    [
        (COMMIT, float("inf")),
        (BRANCH, BRANCH_FRESH_S),
        (FOLDER, FOLDER_FRESH_S),
        ({"gguf": "/m.gguf"}, FOLDER_FRESH_S),
        (COMMIT | {"adapters": [BRANCH, COMMIT]}, BRANCH_FRESH_S),
        (BRANCH | {"adapters": [FOLDER]}, FOLDER_FRESH_S),
        (SIMULATED, 0.0),
    ],
)
def test_how_long_a_source_counts(source: dict[str, object], fresh_s: float) -> None:
    time = Time()
    known = ModelCache(time)
    known.keep(analysis(source), {"it": 1})
    assert (known.find(analysis(dict(source))) == {"it": 1}) is (fresh_s > 0)
    time.now += min(fresh_s, 1e9) - 0.5
    assert (known.find(analysis(source)) is not None) is (fresh_s > 0)
    time.now += 1
    assert (known.find(analysis(source)) is not None) is (fresh_s == float("inf"))


def test_a_caller_may_ask_for_a_newer_reading_of_what_may_move() -> None:
    time = Time()
    known = ModelCache(time)
    for source in (COMMIT, BRANCH, COMMIT | {"draft": BRANCH}):
        known.keep(analysis(source), 1)
    time.now += 5
    assert [known.find(analysis(BRANCH), branch_s) for branch_s in (10.0, 5.0, 0.0)] == [1, None, None]
    assert known.find(analysis(COMMIT | {"draft": BRANCH}), 0.0) is None
    assert known.find(analysis(COMMIT), 0.0) == 1
    assert known.find(analysis(BRANCH)) == 1, "others may still have it"


def test_different_sources_and_readers_are_different() -> None:
    known = ModelCache(Time())
    known.keep(analysis(COMMIT), 1)
    assert known.find(analysis(COMMIT, target="m:g")) is None
    assert known.find(analysis(COMMIT | {"file": "x"})) is None


def test_the_least_recently_used_goes_first() -> None:
    known = ModelCache(Time(), max_kept=2)
    one, two, three = (analysis(COMMIT | {"file": name}) for name in "abc")
    known.keep(one, 1)
    known.keep(two, 2)
    assert known.find(one) == 1
    known.keep(three, 3)
    assert (known.find(one), known.find(two), known.find(three)) == (1, None, 3)
