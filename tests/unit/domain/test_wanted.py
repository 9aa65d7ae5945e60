"""The number of wanted replicas: the autoscaler's within min and max, then the caps of user and policy."""

from typing import Any

import pytest

from controller.domain.instances import Intent
from controller.domain.wanted import is_asleep, is_put_to_sleep, requested_replicas, wanted_replicas
from support.builders.facts import spec

RANGE = {"min": 1, "max": 4}
SLEEPY = {"min": 0, "max": 4}


def scaled(number: int) -> Intent:
    return Intent("autoscaler", number, "demand", min_replicas=number)


def cap(source: str, number: int) -> Intent:
    return Intent(source, number, "")


@pytest.mark.parametrize(
    ("replicas", "intents", "wanted"),
    [
        (2, (), 2),
        (2, (scaled(4),), 2),  # fixed again after it followed requests
        (2, (cap("user", 0),), 0),
        (RANGE, (), 1),
        (RANGE, (scaled(3),), 3),
        (RANGE, (scaled(9),), 4),
        (RANGE, (scaled(0),), 1),
        (RANGE, (scaled(4), cap("policy", 2)), 2),  # G42
        (RANGE, (scaled(1), cap("policy", 2)), 1),
        (RANGE, (cap("policy", 3), cap("user", 0), scaled(4)), 0),
        (SLEEPY, (), 0),
        (SLEEPY, (scaled(2), cap("policy", 0)), 0),
    ],
)
def test_wanted(replicas: Any, intents: tuple[Intent, ...], wanted: int) -> None:
    assert wanted_replicas(spec(replicas=replicas), intents) == wanted


def test_a_dry_run_runs_min_and_at_least_one() -> None:
    for replicas, runs in ((SLEEPY, 1), ({"min": 2, "max": 4}, 2)):
        assert requested_replicas(spec(replicas=replicas, scaling={"dry_run": True}), (scaled(3),)) == runs


@pytest.mark.parametrize(
    ("replicas", "intents", "asleep"),
    [
        (SLEEPY, (), True),
        (SLEEPY, (scaled(0),), True),
        (SLEEPY, (scaled(1), cap("policy", 0)), True),  # a policy's stop is a sleep
        (SLEEPY, (scaled(1),), False),
        (SLEEPY, (scaled(0), cap("user", 0)), False),  # a user's stop is not
        (RANGE, (cap("policy", 0),), False),
        (0, (), False),
    ],
)
def test_asleep(replicas: Any, intents: tuple[Intent, ...], *, asleep: bool) -> None:
    assert is_asleep(spec(replicas=replicas), intents) is asleep


def test_only_what_may_sleep_is_put_to_sleep_by_a_policy() -> None:
    assert is_put_to_sleep(spec(replicas=SLEEPY), (cap("policy", 0),))
    assert not is_put_to_sleep(spec(replicas=RANGE), (cap("policy", 0),))
    assert not is_put_to_sleep(spec(replicas=SLEEPY), (cap("policy", 1),))
