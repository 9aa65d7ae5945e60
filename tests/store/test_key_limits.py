"""Limits of keys, their shares at gateways, and usage, in the database."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from controller.store.access.key_reads import count_keys, hash_secret, read_keys
from controller.store.access.key_shares import exchange_shares, leave_shares
from controller.store.access.keys import KeyChanges, create_key, list_keys, revoke_key, update_key
from controller.store.access.usage import Counts, UsageRow, read_usage, roll_up_usage, write_usage
from controller.store.core.database import Database
from controller.store.core.refusals import LastAdminKeyError, NotFoundError
from schemas.key_limits import KeyLimits, LimitKind, ShareAsk, SharesAnswer
from support.database.ledger import rows

ALL = KeyLimits(("chat", "embed-*"), rpm=60, tpm=1000, tokens_per_day=1_000_000, parallel=4)
P, Q = str(uuid.uuid4()), str(uuid.uuid4())


async def talk(database: Database, gateway: str, *asks: ShareAsk) -> SharesAnswer:
    async with database.transaction() as connection:
        return await exchange_shares(connection, gateway, asks)


async def run(database: Database, query: str, *args: object) -> None:
    async with database.transaction() as connection:
        await connection.execute(query, *args)


def wants(key: str, number: int, *, spent: float = 0.0, minted: float = 0.0) -> ShareAsk:
    return ShareAsk(key, LimitKind.REQUESTS, spent, minted, number)


async def test_a_key_s_limits_are_read_and_shown(migrated: Database) -> None:
    made = await create_key(migrated, "inference", limits=ALL, expires_s=60.0)
    (shown,) = await list_keys(migrated)
    assert (shown.models, shown.rpm, shown.tpm) == (["chat", "embed-*"], 60, 1000)
    assert (shown.tokens_per_day, shown.parallel) == (1_000_000, 4)
    async with migrated.connection() as connection:
        principal = (await read_keys(connection))[hash_secret(made.key)]
    assert principal.limits == ALL
    assert principal.expires_in_s == pytest.approx(60, abs=5)
    (event,) = await rows(migrated, "select * from events where reason = 'key_created'")
    assert event["evidence"]["rpm"] == 60


async def test_a_change_in_place_is_seen_and_told(migrated: Database) -> None:
    made = await create_key(migrated, "inference", limits=ALL)
    async with migrated.connection() as connection:
        counted = await count_keys(connection)
    changes = KeyChanges(frozenset({"rpm", "tpm"}), limits=KeyLimits(rpm=120))
    changed = await update_key(migrated, made.id, changes)
    assert (changed.rpm, changed.tpm, changed.parallel) == (120, None, 4)
    async with migrated.connection() as connection:
        assert await count_keys(connection) != counted
    (event,) = await rows(migrated, "select * from events where reason = 'key_changed'")
    assert event["evidence"] == {"rpm": [60, 120], "tpm": [1000, None]}
    await update_key(migrated, made.id, changes)  # once more, which changes nothing
    assert len(await rows(migrated, "select 1 from events where reason = 'key_changed'")) == 1


async def test_an_expired_key_is_not_read(migrated: Database) -> None:
    made = await create_key(migrated, "inference", expires_s=60.0)
    async with migrated.connection() as connection:
        before = await count_keys(connection)
    await run(migrated, "update api_keys set expires_at = now() - interval '1 s'")
    async with migrated.connection() as connection:
        assert hash_secret(made.key) not in await read_keys(connection)
        assert await count_keys(connection) != before


async def test_an_administrator_s_key_without_expiry_stays(migrated: Database) -> None:
    lasting = await create_key(migrated, "admin")
    await create_key(migrated, "admin", expires_s=3600.0)
    with pytest.raises(LastAdminKeyError):
        await revoke_key(migrated, lasting.id)
    with pytest.raises(LastAdminKeyError):
        await update_key(migrated, lasting.id, KeyChanges(frozenset({"expires_s"}), expires_s=60.0))
    with pytest.raises(NotFoundError):
        await update_key(migrated, "no-uuid", KeyChanges(frozenset()))


async def test_two_gateways_share_one_limit(migrated: Database) -> None:
    made = await create_key(migrated, "inference", limits=KeyLimits(rpm=60))
    first = await talk(migrated, P, wants(made.id, 40))
    second = await talk(migrated, Q, wants(made.id, 40))
    assert [one.held for one in (*first.grants, *second.grants)] == [40, 20]
    assert (await talk(migrated, P)).fraction == 0.5
    assert (await talk(migrated, Q)).fraction == 0.5
    again = await talk(migrated, P, wants(made.id, 0, spent=10))
    assert again.grants[0].held == 0
    assert again.grants[0].level == pytest.approx(30, abs=3)


async def test_an_ask_that_is_repeated_counts_once(migrated: Database) -> None:
    made = await create_key(migrated, "inference", limits=KeyLimits(rpm=60))
    await talk(migrated, P)
    for _ in range(3):
        answer = await talk(migrated, P, wants(made.id, 0, spent=20, minted=0))
    assert answer.grants[0].level == pytest.approx(40, abs=3)


async def test_a_silent_gateway_s_share_comes_back(migrated: Database) -> None:
    made = await create_key(migrated, "inference", limits=KeyLimits(parallel=4))

    def slots(used: int) -> ShareAsk:
        return ShareAsk(made.id, LimitKind.PARALLEL, used, 0.0, 4)

    await talk(migrated, P, slots(4))
    assert (await talk(migrated, Q, slots(0))).grants[0].held == 0
    await run(migrated, "update share_members set seen_at = seen_at - interval '20 s' where gateway::text = $1", P)
    assert (await talk(migrated, Q, slots(0))).grants[0].held == 0  # Q was not in touch for so long itself
    await run(
        migrated,
        "update share_members set in_touch_since = in_touch_since - interval '20 s' where gateway::text = $1",
        Q,
    )
    assert (await talk(migrated, Q, slots(0))).grants[0].held == 4
    back = await talk(migrated, P, slots(4))  # it was cut off, and goes on with what is under way
    assert back.grants[0].held == 4


async def test_a_gateway_that_ends_gives_its_share_back(migrated: Database) -> None:
    made = await create_key(migrated, "inference", limits=KeyLimits(parallel=4))
    await talk(migrated, P, ShareAsk(made.id, LimitKind.PARALLEL, 0.0, 0.0, 4))
    async with migrated.transaction() as connection:
        await leave_shares(connection, P)
    assert (await talk(migrated, Q, ShareAsk(made.id, LimitKind.PARALLEL, 0.0, 0.0, 4))).grants[0].held == 4


async def test_a_day_s_limit_is_full_again_on_the_next_day(migrated: Database) -> None:
    made = await create_key(migrated, "inference", limits=KeyLimits(tokens_per_day=1000))
    used = ShareAsk(made.id, LimitKind.DAY, 1000.0, 0.0, 5)
    await talk(migrated, P)
    assert (await talk(migrated, P, used)).grants[0].held == 0
    await run(migrated, "update key_buckets set day = day - 1")
    assert (await talk(migrated, P, used)).grants[0].held == 5


async def test_revoked_keys_and_lifted_limits_have_no_share(migrated: Database) -> None:
    made = await create_key(migrated, "inference", limits=KeyLimits(rpm=60))
    await update_key(migrated, made.id, KeyChanges(frozenset({"rpm"})))
    assert not (await talk(migrated, P, wants(made.id, 5))).grants
    await update_key(migrated, made.id, KeyChanges(frozenset({"rpm"}), limits=KeyLimits(rpm=5)))
    assert (await talk(migrated, P, wants(made.id, 9))).grants[0].held == 5
    await revoke_key(migrated, made.id)
    assert not (await talk(migrated, P, wants(made.id, 5))).grants


def used(key: str, minute: int, model: str = "chat", *, requests: int = 1) -> UsageRow:
    counts = Counts(requests, 0, 10 * requests, 2, 5 * requests, 0, 0.5, requests, 0.1 * requests)
    return UsageRow(minute, key, model, "chat/completions", counts)


async def write(database: Database, gateway: str, number: int, *batch: UsageRow) -> bool:
    async with database.transaction() as connection:
        return await write_usage(connection, gateway, number, batch)


async def test_a_batch_of_usage_counts_once(migrated: Database) -> None:
    made = await create_key(migrated, "inference", name="team")
    minute = int(datetime.now(UTC).timestamp() // 60)
    assert await write(migrated, P, 1, used(made.id, minute), used(made.id, minute, "embed", requests=3))
    assert not await write(migrated, P, 1, used(made.id, minute), used(made.id, minute, "embed", requests=3))
    assert await write(migrated, Q, 1, used(made.id, minute))
    assert await write(migrated, P, 2, used(made.id, minute))
    assert await write(migrated, P, 3, used(str(uuid.uuid4()), minute))  # a key that is no more
    since = datetime.now(UTC) - timedelta(hours=1)
    async with migrated.connection() as connection:
        by_model = await read_usage(connection, since, ["key", "model"])
        total = await read_usage(connection, since, [])
        none = await read_usage(connection, since, ["key"], only_key=str(uuid.uuid4()))
    assert [(one.key_name, one.model, one.requests, one.prompt_tokens) for one in by_model] == [
        ("team", "chat", 3, 30),
        ("team", "embed", 3, 30),
    ]
    assert (total[0].requests, total[0].completion_tokens) == (6, 30)
    assert none == []


async def test_refused_requests_are_kept_by_hour_too(migrated: Database) -> None:
    made = await create_key(migrated, "inference")
    now = int(datetime.now(UTC).timestamp() // 60)
    for number, days in enumerate((0, 3), start=1):
        row = UsageRow(now - days * 1440, made.id, "", "chat/completions", Counts(refused=7))
        assert await write(migrated, P, number, row)
    async with migrated.transaction() as connection:
        await roll_up_usage(connection)
    async with migrated.connection() as connection:
        (total,) = await read_usage(connection, datetime.now(UTC) - timedelta(days=30), ["model"])
    assert (total.model, total.requests, total.refused) == ("", 0, 14)


async def test_old_usage_is_kept_by_hour_and_day(migrated: Database) -> None:
    made = await create_key(migrated, "inference")
    now = int(datetime.now(UTC).timestamp() // 60)
    for number, days in enumerate((0, 3, 3, 100, 500), start=1):
        await write(migrated, P, number, used(made.id, now - days * 1440))
    for _ in range(2):
        async with migrated.transaction() as connection:
            await roll_up_usage(connection)
    spans = await rows(migrated, "select span_s, sum(requests)::int as n from key_usage group by 1 order by 1")
    assert [tuple(row.values()) for row in spans] == [(60, 1), (3600, 2), (86400, 1)]
    async with migrated.connection() as connection:
        (total,) = await read_usage(connection, datetime.now(UTC) - timedelta(days=400), ["key"])
    assert total.requests == 4
