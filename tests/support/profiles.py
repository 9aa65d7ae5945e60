"""How long the ledger machine runs, and how many inputs the readers of untrusted files get. `HYPOTHESIS_PROFILE` is
"short" (the default), "full", "nightly" or "shrink".
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings

Test = TypeVar("Test", bound=Callable[..., Any])

VARIABLE = "HYPOTHESIS_PROFILE"
_COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
_FIND = [Phase.generate]
_PROFILES = {
    # Always the same examples, so that results depend on the change alone; a failure is shown as found.
    "short": settings(max_examples=25, stateful_step_count=50, derandomize=True, phases=_FIND, **_COMMON),
    # As short, with every example that a property states: what `make mutate` counts by.
    "full": settings(max_examples=25, stateful_step_count=50, derandomize=True, phases=_FIND, **_COMMON),
    "nightly": settings(max_examples=200, stateful_step_count=50, phases=_FIND, **_COMMON),
    # As nightly, and shortens a failing example as far as possible, which takes long.
    "shrink": settings(max_examples=200, stateful_step_count=50, **_COMMON),
}


_INPUTS = {"short": 200, "full": 200, "nightly": 10_000, "shrink": 10_000}
PROFILE = os.environ.get(VARIABLE, "short")
# Of the inputs of a reader, since a round remembers all of its own: 100,000 take 20 GiB.
DAILY = PROFILE in {"short", "full"}
READER_ROUNDS = 1 if DAILY else 10
TIMEOUT_S = 600 if DAILY else 14_400


def machine_settings() -> settings:
    """The profile's settings.

    Raises:
        ValueError: the profile is unknown.
    """
    if PROFILE not in _PROFILES:
        raise ValueError(f"{VARIABLE}={PROFILE} is unknown; use one of {', '.join(sorted(_PROFILES))}")
    return _PROFILES[PROFILE]


def short_settings() -> settings:
    """Always the same examples, whatever the profile."""
    return _PROFILES["short"]


def reader_settings() -> Callable[[Test], Test]:
    """The profile's settings and rounds for a property of a reader; each input takes about a millisecond.

    Raises:
        ValueError: as `machine_settings`.
    """
    chosen = settings(machine_settings(), max_examples=_INPUTS[PROFILE])
    return lambda test: pytest.mark.usefixtures("reader_round")(chosen(test))


# Of the number that a property states. A short run has the same examples each time; nightly ones are drawn.
_SHARES = {"short": 0.4, "full": 1.0, "nightly": 10.0, "shrink": 10.0}


def examples(count: int = 100, **others: Any) -> settings:
    """The profile's share of so many examples, without a deadline: on a busy machine an example may take long.

    Raises:
        ValueError: as `machine_settings`.
    """
    machine_settings()
    return settings(max_examples=round(count * _SHARES[PROFILE]), deadline=None, derandomize=DAILY, **others)


_PLANS = {"short": 10, "full": 20, "nightly": 2_000, "shrink": 2_000}


def plan_settings() -> settings:
    """The profile's settings for plan and apply; each example takes a quarter of a second.

    Raises:
        ValueError: as `machine_settings`.
    """
    return settings(machine_settings(), max_examples=_PLANS[PROFILE])
