"""A policy's cap ends once demand has exceeded it for the policy's window."""

from dataclasses import replace

import pytest

from controller.decide.scaling.decide import CapVerdict, decide_scaling, judge_cap
from controller.domain.scaling import Demand, PolicyCap
from support.builders.scaling import Watched, demand

CAP = PolicyCap(2, 0.0, 600.0, None)


@pytest.mark.parametrize(
    ("cap", "outgrown_for_s", "number", "fields", "verdict"),
    [
        (None, 600, 3, {}, (False, False)),
        (CAP, 599, 3, {}, (True, False)),
        (CAP, 600, 3, {}, (True, True)),
        (CAP, 900, 2, {}, (False, False)),  # the wish is within the cap
        (CAP, None, 3, {}, (False, False)),
        (replace(CAP, window_s=None), 900, 3, {}, (True, False)),
        (CAP, 900, 3, {"demand": demand(0, silent=("q",))}, (False, False)),  # unknown demand changes nothing
        (replace(CAP, outgrown_s=5.0), 900, 3, {"demand": demand(0, silent=("q",))}, (True, False)),
    ],
)
def test_a_policys_cap_ends_once_demand_has_exceeded_it_for_its_window(
    cap: PolicyCap | None,
    outgrown_for_s: float | None,
    number: int,
    fields: dict[str, Demand],
    verdict: tuple[bool, bool],
) -> None:
    watched = Watched(2)
    watched.see(1, **fields)
    watched.history.cap_set(watched.now, outgrown_for_s)
    wish = replace(decide_scaling(watched.view, watched.history, watched.now), number=number)
    assert judge_cap(cap, watched.view, watched.history, watched.now, wish) == CapVerdict(*verdict)


@pytest.mark.parametrize(
    ("seen", "outgrown_s"),
    [
        ([(0, 2)], None),
        ([(0, 3)], 0),
        ([(0, 3), (60, 3)], 60),
        ([(0, 3), (299, 2)], 299),  # one peak counts for the down window
        ([(0, 3), (300, 2)], None),
        ([(0, 3), (200, 3), (299, 2), (499, 2)], 499),
        ([(0, 3), (200, 3), (500, 2)], None),
        ([(0, 3), (300, 2), (310, 3)], 0),
    ],
)
def test_demand_outgrows_a_cap_from_its_first_wish_above_it(
    seen: list[tuple[float, int]], outgrown_s: float | None
) -> None:
    history, began = Watched(2).history, 1000.0
    history.cap_set(began, None)
    for at_s, needed in seen:
        history.compare_to_cap(2, needed, 300.0, began + at_s)
    assert history.outgrown_s(began + seen[-1][0]) == outgrown_s


def test_a_cap_that_was_outgrown_before_goes_on_from_there() -> None:
    history = Watched(2).history
    history.cap_set(1000.0, 50.0)
    assert history.outgrown_s(1010.0) == 60
    history.compare_to_cap(2, 2, 300.0, 1299.0)
    assert history.outgrown_s(1299.0) == 349
    history.compare_to_cap(2, 2, 300.0, 1300.0)
    assert history.outgrown_s(1300.0) is None
