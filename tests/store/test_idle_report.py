"""Claimed, used, wasted, unknown and freed GPU time, from rows written by hand. The period is the hour from T0."""

from datetime import timedelta
from itertools import pairwise

import pytest

from controller.api.resources.idle_report import would_free as all_freed
from controller.store.core.database import Database
from controller.store.telemetry.idle_report import Sums, add_usage, days, read_claimed
from schemas.manifest.policy import UtilizationPolicy
from support.database.history import at, minutes, partitions, span
from support.database.ledger import GIB, Host, add_deployment, add_host, add_instance, claim

A, B = "GPU-w-0", "GPU-w-1"
HOUR = 3600


@pytest.fixture
async def host(migrated: Database) -> Host:
    await partitions(migrated)
    return await add_host(migrated, "w", gpus=2, gib=40)


async def summed(db: Database, begin: float = 0, end: float = HOUR, **minimums: int) -> Sums:
    async with db.snapshot() as c:
        sums = await read_claimed(c, at(begin), at(end))
        for since, until in days(at(begin), at(end)):
            await add_usage(c, sums, since, until, minimums, 10)
    return sums


def each(begin: float, end: float, value: float) -> list[tuple[float, float]]:
    return [(s, value) for s in range(int(begin), int(end), 60)]


@pytest.mark.usefixtures("host")
async def test_a_whole_gpu_half_idle_half_at_work(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    await span(migrated, A, "i", uid, 0, HOUR)
    await minutes(migrated, A, [*each(0, 1200, 0), *each(1200, 2400, 90)])
    spent = (await summed(migrated)).spent[uid]
    assert spent.total.claimed_s == HOUR
    assert spent.total.known_s == pytest.approx(2400), "the last twenty minutes are unknown"
    assert spent.total.used_s == pytest.approx(1200 * 0.9)
    assert spent.total.wasted_s == pytest.approx(1200)
    assert not spent.deleted


@pytest.mark.usefixtures("host")
async def test_a_minute_below_the_policys_own_minimum_is_wasted(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    await span(migrated, A, "i", uid, 0, HOUR)
    await minutes(migrated, A, each(0, HOUR, 30))
    assert (await summed(migrated)).spent[uid].total.wasted_s == 0
    assert (await summed(migrated, **{uid: 31})).spent[uid].total.wasted_s == pytest.approx(HOUR)
    assert (await summed(migrated, **{uid: 30})).spent[uid].total.wasted_s == 0


@pytest.mark.usefixtures("host")
async def test_a_shared_gpu_counts_by_share_and_own_minutes(migrated: Database) -> None:
    works, sleeps = await add_deployment(migrated, "works"), await add_deployment(migrated, "sleeps")
    await span(migrated, A, "w", works, 0, HOUR, share=0.5)
    await span(migrated, A, "s", sleeps, 0, HOUR, share=0.25)
    await minutes(migrated, A, each(0, HOUR, 80))
    await minutes(migrated, A, each(0, HOUR, 80), instance="w")
    await minutes(migrated, A, each(0, HOUR, 0), instance="s")
    sums = await summed(migrated)
    assert (sums.spent[works].total.claimed_s, sums.spent[works].total.wasted_s) == (HOUR / 2, 0)
    assert sums.spent[works].total.used_s == pytest.approx(HOUR / 2 * 0.8)
    assert (sums.spent[sleeps].total.claimed_s, sums.spent[sleeps].total.used_s) == (HOUR / 4, 0)
    assert sums.spent[sleeps].total.wasted_s == pytest.approx(HOUR / 4)


@pytest.mark.usefixtures("host")
async def test_claims_are_cut_to_the_period_and_minutes_to_the_claim(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    await span(migrated, A, "i", uid, -HOUR, 90)
    await minutes(migrated, A, each(-HOUR, HOUR, 0))
    spent = (await summed(migrated)).spent[uid]
    assert (spent.total.claimed_s, spent.total.known_s) == (90, pytest.approx(90))
    assert (await summed(migrated, 90)).spent == {}


@pytest.mark.usefixtures("host")
async def test_a_restart_in_place_counts_no_time_twice(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    for epoch, (begin, end) in enumerate([(0, 610), (610, 1830), (1830, HOUR)], 1):
        await span(migrated, A, "i", uid, begin, end, epoch=epoch)
    await minutes(migrated, A, each(0, HOUR, 50))
    spent = (await summed(migrated)).spent[uid]
    assert (spent.total.claimed_s, spent.total.used_s) == (pytest.approx(HOUR), pytest.approx(HOUR / 2))


@pytest.mark.usefixtures("host")
async def test_deployments_of_one_name_are_counted_apart_and_live_claims_continue(migrated: Database) -> None:
    before = await add_deployment(migrated, "before")
    await span(migrated, A, "i", before, 0, 600, name="d")
    async with migrated.transaction() as c:
        await c.execute("update deployments set name = 'd', deleted_at = now() where uid = $1", before)
    after = await add_deployment(migrated, "d")
    await add_instance(migrated, after, "j", phase="running", epoch=1)
    await claim(migrated, B, "j", 10 * GIB)
    async with migrated.transaction() as c:
        await c.execute("alter table claims disable trigger claims_no_update")
        await c.execute("update claims set created_at = $1", at(1800))
    sums = await summed(migrated)
    assert (sums.spent[before].deployment, sums.spent[before].deleted) == ("d", True)
    assert (sums.spent[after].deployment, sums.spent[after].deleted) == ("d", False)
    assert (sums.spent[before].total.claimed_s, sums.spent[after].total.claimed_s) == (600, 1800 / 4)


@pytest.mark.usefixtures("host")
async def test_a_claim_of_the_whole_time_counts_as_two_claims_of_its_halves_do(migrated: Database) -> None:
    """The one is summed in the order of the table, the others claim by claim. Also where the time cuts minutes."""
    whole, halves = await add_deployment(migrated, "whole"), await add_deployment(migrated, "halves")
    await span(migrated, A, "w", whole, -HOUR, 2 * HOUR, share=0.5)
    await span(migrated, B, "h", halves, -HOUR, 1830, share=0.5)
    await span(migrated, B, "h", halves, 1830, 2 * HOUR, share=0.5, epoch=2)
    for device, instance in ((A, "w"), (B, "h"), (A, ""), (B, "")):
        values = each(-HOUR, 2 * HOUR, 0)
        await minutes(migrated, device, [(s, s / 60 * 7 % 100) for s, _ in values], instance=instance)
    for begin, end in ((0, HOUR), (15, HOUR - 10), (90, 1900)):
        spent = (await summed(migrated, begin, end, **{whole: 42, halves: 42})).spent
        one, two = spent[whole].total, spent[halves].total
        assert one.wasted_s > 0
        assert (one.known_s, one.used_s, one.wasted_s) == pytest.approx((two.known_s, two.used_s, two.wasted_s))


@pytest.mark.usefixtures("host")
async def test_each_deployment_has_its_own_minimum(migrated: Database) -> None:
    low, high, other = [await add_deployment(migrated, name) for name in ("low", "high", "other")]
    for uid, name in ((low, "l"), (high, "h"), (other, "o")):
        await span(migrated, A, name, uid, 0, HOUR, share=0.25)
        await minutes(migrated, A, [*each(0, 600, 5), *each(600, 1800, 30), *each(1800, HOUR, 60)], instance=name)
    spent = (await summed(migrated, **{low: 5, high: 60})).spent
    wasted = [spent[uid].total.wasted_s for uid in (low, high, other)]
    assert wasted == pytest.approx([0, 1800 / 4, 600 / 4])


async def test_days_follow_one_another_to_the_end() -> None:
    begin, end = at(0), at(0) + timedelta(days=2)
    cut = list(days(begin, end))
    assert (cut[0][0], cut[-1][1]) == (begin, end)
    assert all(a[1] == b[0] for a, b in pairwise(cut))
    assert all((b - a) <= timedelta(days=1) for a, b in cut)


@pytest.mark.usefixtures("host")
async def test_policies_freed_until_they_are_wanted_again(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    async with migrated.transaction() as c:
        for policy, action, dry, begin, end in (
            ("p", "stop", False, -600, 600),
            ("p", "scale_down", False, 3000, None),
            ("", "stop", False, 0, 60),
            ("p", "stop", True, 0, None),
            ("p", "notify", False, 0, None),
            ("p", "stop", False, -900, -600),
        ):
            await c.execute(
                """insert into policy_actions (at, policy, policy_generation, action, dry_run, deployment_uid,
                                               deployment, instances, gpus, evidence, ended_at)
                   values ($1, $2, 1, $3, $4, $5, 'd', '{i}', 1.5, '{}', $6)""",
                at(begin), policy, action, dry, uid, None if end is None else at(end),
            )  # fmt: skip
    sums = await summed(migrated)
    assert {name: (f.actions, f.freed_s) for name, f in sums.freed.items()} == {"p": (2, 1800), "": (1, 90)}
    assert (sums.spent[uid].freed_s, sums.spent[uid].total.claimed_s) == (1890, 0)


async def would_free(
    db: Database, begin: float = 0, end: float = HOUR, *, minimum: int = 50, window: int = 600
) -> float:
    policy = UtilizationPolicy(min_gpu_utilization=minimum, time_window=window)
    return sum(sum(freed.values()) for freed in (await all_freed(db, at(begin), at(end), policy)).values())


@pytest.mark.usefixtures("host")
async def test_a_replayed_policy_frees_from_its_first_full_window_on(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    await span(migrated, A, "i", uid, 0, HOUR)
    await minutes(migrated, A, [*each(0, 600, 90), *each(600, HOUR, 20)])
    assert await would_free(migrated) == pytest.approx(HOUR - 1200)
    assert await would_free(migrated, minimum=20) == 0
    assert await would_free(migrated, window=1200) == pytest.approx(HOUR - 1800)


@pytest.mark.usefixtures("host")
async def test_a_replay_ignores_missing_minutes(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    await span(migrated, A, "i", uid, 0, HOUR)
    await minutes(migrated, A, [*each(0, 120, 0), *each(1200, 1500, 0)])
    assert await would_free(migrated) == 0


@pytest.mark.usefixtures("host")
async def test_a_replay_judges_each_epoch_and_frees_all_that_follows_without_a_gap(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    await span(migrated, A, "i", uid, 0, 480)
    await span(migrated, A, "i", uid, 480, 1800, epoch=2)
    await span(migrated, A, "i", uid, 1800, 2400, epoch=3, ran=False)
    await span(migrated, B, "i", uid, 3000, HOUR, epoch=4)
    for device in (A, B):
        await minutes(migrated, device, each(0, HOUR, 0))
    # The second epoch's window is full at 1080; the fourth follows a gap, and its own window is full at its end.
    assert await would_free(migrated) == pytest.approx(2400 - 1080)
    assert await would_free(migrated, 1200) == pytest.approx(1200), "idle already when the period begins"


@pytest.mark.usefixtures("host")
async def test_a_replay_judges_all_gpus_of_an_instance_together(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    for device in (A, B):
        await span(migrated, device, "i", uid, 0, HOUR)
    await minutes(migrated, A, each(0, HOUR, 0))
    await minutes(migrated, B, [*each(0, 1800, 90), *each(1800, HOUR, 0)])
    assert await would_free(migrated) == pytest.approx(2 * (HOUR - 2400))
