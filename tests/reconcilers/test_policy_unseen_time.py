"""What a new leader does not read itself: "below since" never goes across use or a gap that its minutes show."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from controller.store.core.database import Database
from controller.store.telemetry.minutes import WRITABLE_SINCE
from support.database.history import rolled_up
from support.database.ledger import GIB, claim, rows
from support.database.policy_ledger import DEVICE_GIB, PERIOD_S, STOP_IDLE, PolicyLedger, settle, steady

LOW_FOR_S = 3 * 3600.0  # by the stored verdict
_TOLERANCE_S = 61.0  # a minute, by which the stored figures are known
_RULE: Final = {**STOP_IDLE, "action": "notify"}
_LONG_AGO: Final = 20 * 86_400.0
Changed = Mapping[float, float | None]


@pytest.fixture
async def world(db: Database) -> PolicyLedger:
    return await PolicyLedger.make(db)


def past(changed: Changed) -> dict[float, float]:
    """Low for three hours, but for these ages: another value, or none."""
    known = {age: changed.get(age, 0.0) for age in steady(0, to=LOW_FOR_S + 100)}
    return {age: value for age, value in known.items() if value is not None}


def between(first: float, last: float, value: float | None) -> Changed:
    return {age: value for age in steady(0, to=LOW_FOR_S) if last <= age < first}


async def begin(world: PolicyLedger, name: str, changed: Changed = {}, **rule: Any) -> None:  # noqa: B006 - not changed
    """A deployment that has run for long, with its samples."""
    await world.deployment(name, utilization_policy={**_RULE, **rule})
    await world.write("update instances set running_since = now() - interval '9 hours'")
    await world.samples(f"{name}-0", past(changed))


async def low_for(world: PolicyLedger, stored_s: float = LOW_FOR_S) -> dict[str, float]:
    """For how long each is low by what a new leader stores, after an earlier one stored `stored_s`."""
    await settle(await world.leader())
    await world.write("update policy_verdicts set low_since = to_timestamp($1)", world.now - stored_s)
    await settle(await world.leader())
    found = await rows(world.db, "select instance_id, verdict, low_since from policy_verdicts")
    assert {row["verdict"] for row in found} == {"idle"}
    return {row["instance_id"].removesuffix("-0"): world.now - row["low_since"].timestamp() for row in found}


_CASES: Final[Mapping[str, tuple[Changed, float]]] = {
    "low": ({}, LOW_FOR_S),
    "hour-of-use": (between(7000, 4000, 90.0), 4000),
    "long-gap": (between(7000, 4000, None), 4000),
    "one-use": ({5001.0: 50.0}, 5000),
    "short-gap": (between(5010, 5000, None), 5000),
}


@pytest.mark.parametrize("rolled", [True, False], ids=["rolled-up", "backlog-just-arrived"])
async def test_a_new_leader_examines_the_time_that_it_does_not_read(world: PolicyLedger, rolled: bool) -> None:
    """Backlogs of hours arrived while no leader judged."""
    for name, (changed, _) in _CASES.items():
        await begin(world, name, changed)
    if rolled:
        await rolled_up(world.db)
    found = await low_for(world)
    for name, (_, wanted) in _CASES.items():
        assert wanted - _TOLERANCE_S <= found[name] <= wanted + PERIOD_S, (name, found)


async def test_what_is_older_than_any_minute_stays_as_it_was_stored(world: PolicyLedger) -> None:
    await begin(world, "d")
    await rolled_up(world.db)
    await world.write("delete from sample_minutes")
    await world.write(
        f"""insert into sample_minutes (minute, device, instance_id, mean, max, samples, covered_s)
            select m, $1, '', 0, 0, 6, 60
              from generate_series(({WRITABLE_SINCE}), now() - interval '1 min', interval '1 min') m""",  # noqa: S608
        world.gpus["d-0"],
    )
    assert (await low_for(world, _LONG_AGO))["d"] == pytest.approx(_LONG_AGO, abs=1)


async def test_the_mean_of_the_gpus_counts_where_the_policy_says_so(world: PolicyLedger) -> None:
    cases: Mapping[str, tuple[Changed, Changed, float]] = {
        "low": (between(7000, 4000, 80.0), between(7000, 4000, 10.0), LOW_FOR_S),
        "high": (between(7000, 4000, 80.0), between(7000, 4000, 30.0), 4000),
        "uncovered": (between(7000, 4000, None), {}, 4000),
    }
    for n, (name, (first, second, _)) in enumerate(cases.items()):
        await begin(world, name, first, gpus="mean")
        instance, other = f"{name}-0", world.host.gpus[5 + n]
        await claim(world.db, other, instance, DEVICE_GIB * GIB, exclusive=True)
        world.gpus[instance], own = other, world.gpus[instance]
        await world.samples(instance, past(second))
        world.gpus[instance] = own
    await rolled_up(world.db)
    found = await low_for(world)
    for name, (*_, wanted) in cases.items():
        assert wanted - _TOLERANCE_S <= found[name] <= wanted + PERIOD_S, (name, found)


async def test_on_a_shared_gpu_its_own_processes_count(world: PolicyLedger) -> None:
    uid = await world.deployment("d", replicas=0, utilization_policy=_RULE)
    await world.write("update deployments set spec = jsonb_set(spec, '{replicas}', '1')")
    await world.instance(uid, "d-0", mib=1024)
    await world.write("update instances set running_since = now() - interval '9 hours'")
    await world.samples("d-0", dict.fromkeys(past({}), 95.0), own=0.0)
    await rolled_up(world.db)
    assert (await low_for(world))["d"] == pytest.approx(LOW_FOR_S, abs=1)
    await world.write(
        """update sample_minutes set max = 60
            where instance_id = 'd-0' and minute = date_bin('1 min', to_timestamp($1), 'epoch')""",
        world.now - 5000,
    )
    assert 4900 < (await low_for(world))["d"] <= 5000
