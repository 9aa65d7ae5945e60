"""The commit of placements: all of an instance or nothing, whatever the rows have become since they were read."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from controller.domain.admission import PendingRow
from controller.domain.placement import Layout, Placed, PlannedClaim
from controller.store.core.database import Database
from controller.store.core.ledger_audit import audit
from controller.store.placement.commit import PlacedStart, commit_placements
from support.database.ledger import GIB, Host, add_deployment, add_host, add_instance, claim, rows


async def waiting(db: Database, name: str, **fields: Any) -> PendingRow:
    uid = await add_deployment(db, name, **fields)
    await add_instance(db, uid, f"{name}-1")
    return PendingRow(f"{name}-1", uid, name, 1, "pending", 0, 0.0, "", None)


def gang(one: PendingRow, *hosts: Host, gpus: int = 1, mib: int = 10 * GIB) -> PlacedStart:
    """So many GPUs of each host, the first host leading."""
    claims = [
        PlannedClaim(device, 0 if device.startswith("host-") else mib, 0, False, position, rank)
        for rank, host in enumerate(hosts)
        for position, device in enumerate([*host.gpus[:gpus], f"host-{host.id}"])
    ]
    layout = Layout(gpus * len(hosts), mib, False, workers=len(hosts), tp=gpus, pp=len(hosts))
    placed = Placed(one.id, tuple(h.id for h in hosts), tuple(claims), layout, "simulated")
    return PlacedStart(one, placed, tuple({"argv": [str(rank)]} for rank in range(len(hosts))))


async def commit(db: Database, *starts: PlacedStart) -> list[str]:
    async with db.transaction() as connection:
        return [s.waiting.id for s in await commit_placements(connection, starts)]


async def test_a_gang_has_claims_and_a_start_order_on_each_of_its_workers(db: Database) -> None:
    leader, second = await add_host(db, "w2"), await add_host(db, "w1")
    assert await commit(db, gang(await waiting(db, "g"), leader, second, gpus=2)) == ["g-1"]
    (one,) = await rows(db, "select phase, epoch, engine, layout from instances")
    layout = {"gpus": 4, "workers": 2, "tp": 2, "pp": 2, "dp": 1}
    assert one == {"phase": "scheduled", "epoch": 1, "engine": "simulated", "layout": layout}
    orders = await rows(db, "select worker_id::text, epoch, rank, verb, payload from commands order by rank")
    assert [(o["worker_id"], o["epoch"], o["rank"], o["verb"], o["payload"]["argv"]) for o in orders] == [
        (leader.id, 1, 0, "start", ["0"]),
        (second.id, 1, 1, "start", ["1"]),
    ]
    held = await rows(db, "select device, rank, epoch from claims order by rank, position")
    assert [(h["device"], h["rank"]) for h in held] == [
        *[(device, 0) for device in (*leader.gpus[:2], f"host-{leader.id}")],
        *[(device, 1) for device in (*second.gpus[:2], f"host-{second.id}")],
    ]
    (event,) = await rows(
        db, "select reason, objects, subjects, event_subjects(objects, evidence) as looked_up from events"
    )
    assert event["reason"] == "scheduled"
    assert {f"worker:{leader.id}", f"worker:{second.id}"} <= set(event["objects"])
    assert event["subjects"] == event["looked_up"]
    assert [s["name"] for s in event["subjects"][:4]] == ["g", "g-1", "w2", "w1"]
    async with db.snapshot() as connection:
        assert (await audit(connection)).ok


@pytest.mark.parametrize(
    "change",
    [
        "update workers set cordoned = true where name = 'w2'",
        "update workers set draining = true where name = 'w2'",
        "update workers set phase = 'unreachable' where name = 'w2'",
        "update workers set gpus_known = false where name = 'w2'",
        "update workers set deleted_at = now() where name = 'w2'",
        "update devices set health = 'unhealthy' where uuid = 'GPU-w2-0'",
        "update devices set present = false where uuid = 'GPU-w2-0'",
        "update devices set mig_mode = true where uuid = 'GPU-w2-0'",
        "update devices set cordoned = true where uuid = 'GPU-w2-0'",
        "update instances set phase = 'failed' where id = 'g-1'",
        "update instances set epoch = 1 where id = 'g-1'",
        "update deployments set deleted_at = now() where name = 'g'",
        "update deployments set revision = 2 where name = 'g'",
    ],
)
async def test_a_gang_whose_second_rank_lost_its_place_gets_no_place(db: Database, change: str) -> None:
    first, second, third = [await add_host(db, name) for name in ("w1", "w2", "w3")]
    whole, other = await waiting(db, "g"), await waiting(db, "o")
    async with db.connection() as connection:
        await connection.execute(change)
    assert await commit(db, gang(whole, first, second), gang(other, third)) == ["o-1"]
    assert {c["instance_id"] for c in await rows(db, "select instance_id from claims")} == {"o-1"}
    assert {c["instance_id"] for c in await rows(db, "select instance_id from commands")} == {"o-1"}
    assert len(await rows(db, "select 1 from events")) == 1


async def test_claims_committed_meanwhile_stand(db: Database) -> None:
    first, second = await add_host(db, "w1", gib=20), await add_host(db, "w2", gib=20)
    one, other = await waiting(db, "g"), await waiting(db, "o")
    await add_instance(db, other.deployment_uid, "o-2", phase="running", epoch=1)
    await claim(db, second.gpus[0], "o-2", 15 * GIB)
    assert await commit(db, gang(one, first, second)) == []
    assert await commit(db, gang(one, first, second, mib=5 * GIB)) == ["g-1"]


async def test_what_is_reserved_or_in_use_meanwhile_is_not_given_to_sharers(db: Database) -> None:
    for n, (change, fits) in enumerate(
        [
            ("reserved_mib = 10 * 1024 where kind = 'gpu'", ["s", "w"]),
            ("reserved_mib = 11 * 1024 where kind = 'gpu'", ["w"]),
            ("foreign_mib = 10 * 1024 where kind = 'gpu'", ["s"]),
            ("foreign_mib = 11 * 1024 where kind = 'gpu'", []),
            ("reserved_mib = memory_mib where kind = 'host'", ["s", "w"]),
        ]
    ):
        host = await add_host(db, f"w{n}", gpus=2, gib=20)
        sharing = gang(await waiting(db, f"s{n}"), host)
        taking = gang(await waiting(db, f"w{n}"), replace(host, gpus=host.gpus[1:]), mib=20 * GIB)
        whole = tuple(replace(c, exclusive=c.memory_mib > 0) for c in taking.placed.claims)
        async with db.connection() as connection:
            await connection.execute(f"update devices set {change}")  # noqa: S608 - from the table above
        kept = await commit(db, sharing, replace(taking, placed=replace(taking.placed, claims=whole)))
        assert kept == [f"{name}{n}-1" for name in fits], change


async def test_host_memory_that_is_reserved_meanwhile_is_not_given_away(db: Database) -> None:
    host = await add_host(db, "w1", gpus=1)
    start = gang(await waiting(db, "s"), host)
    claims = tuple(replace(c, memory_mib=10 * GIB) for c in start.placed.claims)
    async with db.connection() as connection:
        await connection.execute("update devices set reserved_mib = memory_mib - 9 * 1024 where kind = 'host'")
    assert await commit(db, replace(start, placed=replace(start.placed, claims=claims))) == []


async def test_of_two_at_once_that_want_the_last_gpu_one_commits(db: Database) -> None:
    """N2: by the locks, in whatever order they come; the other is left out and affects no other."""
    host = await add_host(db, "w", gpus=1)
    for n in range(10):
        pair = [await waiting(db, f"d{n}-{side}") for side in "ab"]
        starts = [
            replace(s, placed=replace(s.placed, claims=tuple(_whole(c) for c in s.placed.claims)))
            for s in (gang(one, host) for one in pair)
        ]
        kept = await asyncio.gather(*(commit(db, start) for start in starts))
        assert sorted(len(k) for k in kept) == [0, 1]
        async with db.connection() as connection:
            await connection.execute("delete from claims")


def _whole(c: PlannedClaim) -> PlannedClaim:
    return c if c.device.startswith("host-") else replace(c, exclusive=True, memory_mib=40 * GIB)


async def test_a_large_batch_is_one_pass_and_each_gets_its_own(db: Database) -> None:
    hosts = [await add_host(db, f"w{n:02}", gpus=8) for n in range(40)]
    uid = await add_deployment(db, "d")
    starts = []
    for n in range(320):
        one = PendingRow(await add_instance(db, uid, f"d-{n:03}"), uid, "d", 1, "pending", 0, 0.0, "", None)
        host = hosts[n // 8]
        starts.append(gang(one, replace(host, gpus=(host.gpus[n % 8],))))
    assert len(await commit(db, *starts)) == 320
    assert await rows(db, "select count(*) as n, count(distinct device) as d from claims where memory_mib > 0") == [
        {"n": 320, "d": 320}
    ]


async def test_a_gang_whose_port_was_taken_meanwhile_lost_the_race(db: Database) -> None:
    one, two = await add_host(db, "w1"), await add_host(db, "w2")
    first = replace(gang(await waiting(db, "a"), one, two), rendezvous_port=10_001)
    second = replace(gang(await waiting(db, "b"), one, two), rendezvous_port=10_001)
    third = replace(gang(await waiting(db, "c"), two, one), rendezvous_port=10_001)
    assert await commit(db, first, second, third) == ["a-1", "c-1"], "another host's port is another one"
    assert await commit(db, second) == []
    assert await commit(db, replace(second, rendezvous_port=10_002)) == ["b-1"]
