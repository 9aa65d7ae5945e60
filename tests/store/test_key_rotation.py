"""Keys are rotated with an overlap, say when they were used last, and remind of their expiry."""

import time
import uuid
from datetime import timedelta

import pytest

from controller.store.access.key_expiry import KeyExpiry, read_key_expiry
from controller.store.access.key_reads import find_keys, hash_secret
from controller.store.access.key_use import note_use
from controller.store.access.keys import create_key, list_keys, revoke_key, rotate_key
from controller.store.access.usage import Counts, UsageRow, write_usage
from controller.store.core.database import Database
from controller.store.core.refusals import AlreadyRotatedError, LastAdminKeyError, NotFoundError
from controller.store.views.attention import read_attention
from schemas.key_limits import KeyLimits
from support.database.ledger import rows

DAY_S = 86_400.0


async def test_a_successor_has_role_limits_and_name_and_the_old_key_ends(migrated: Database) -> None:
    limits = KeyLimits(("chat", "embed-*"), 60, None, 10_000, 2)
    old = await create_key(migrated, "inference", name="ci", limits=limits)
    new = await rotate_key(migrated, old.id, overlap_s=3600)
    assert new.key != old.key
    for name in ("role", "name", "models", "rpm", "tpm", "tokens_per_day", "parallel", "expires_at"):
        assert getattr(new, name) == getattr(old, name)
    found = {key.id: key for key in await list_keys(migrated)}
    assert found[old.id].rotated_to == new.id
    (row,) = await rows(migrated, "select expires_at - now() as left from api_keys where id = $1", old.id)
    assert timedelta(minutes=50) < row["left"] <= timedelta(hours=1)
    async with migrated.connection() as connection:
        both = await find_keys(connection, [hash_secret(old.key), hash_secret(new.key)])
    assert len(both) == 2, "both are valid during the overlap"
    with pytest.raises(AlreadyRotatedError, match=new.id):
        await rotate_key(migrated, old.id, overlap_s=1)
    (event,) = await rows(migrated, "select message, evidence::text, objects from events where reason = 'key_rotated'")
    assert event["objects"] == [f"key:{old.id}", f"key:{new.id}"]
    assert new.key not in str(event)


async def test_without_an_overlap_the_old_key_is_over_at_once(migrated: Database) -> None:
    old = await create_key(migrated, "viewer")
    await rotate_key(migrated, old.id, overlap_s=0)
    async with migrated.connection() as connection:
        assert await find_keys(connection, [hash_secret(old.key)]) == {}


async def test_a_successor_lives_as_long_and_the_old_one_no_longer_than_before(migrated: Database) -> None:
    old = await create_key(migrated, "viewer", expires_s=2 * DAY_S)
    new = await rotate_key(migrated, old.id, overlap_s=30 * DAY_S)
    found = {key.id: key for key in await list_keys(migrated)}
    assert found[old.id].expires_at == old.expires_at
    assert new.expires_at is not None
    assert new.expires_at - new.created_at == pytest.approx(timedelta(days=2), abs=timedelta(seconds=5))


async def test_what_cannot_be_rotated(migrated: Database) -> None:
    admin = await create_key(migrated, "admin")
    with pytest.raises(LastAdminKeyError):
        await rotate_key(migrated, admin.id, overlap_s=1, expires_s=DAY_S)
    assert (await rotate_key(migrated, admin.id, overlap_s=1)).expires_at is None
    gone = await create_key(migrated, "viewer")
    await revoke_key(migrated, gone.id)
    for key_id in (gone.id, "nothing"):
        with pytest.raises(NotFoundError):
            await rotate_key(migrated, key_id, overlap_s=1)


async def test_the_last_use_is_noted_once_a_minute(migrated: Database) -> None:
    key, other = await create_key(migrated, "viewer"), await create_key(migrated, "inference")
    async with migrated.transaction() as connection:
        await note_use(connection, [key.id])
        (first,) = await connection.fetch("select used_at, xmin::text from api_keys where id = $1", key.id)
    async with migrated.transaction() as connection:
        await note_use(connection, [key.id])
        (second,) = await connection.fetch("select used_at, xmin::text from api_keys where id = $1", key.id)
        one = UsageRow(1, other.id, "chat", "/v1/chat", Counts(1))
        assert await write_usage(connection, str(uuid.uuid4()), 1, [one])
    assert first["used_at"] is not None
    assert tuple(first) == tuple(second), "no row is written again within a minute"
    assert all(one.used_at is not None for one in await list_keys(migrated)), "requests to models count, too"


async def test_keys_that_expire_soon_are_told_once_and_not_those_on_their_way_out(migrated: Database) -> None:
    soon = await create_key(migrated, "viewer", name="soon", expires_s=30 * DAY_S)
    await create_key(migrated, "viewer", name="short", expires_s=DAY_S)
    await create_key(migrated, "viewer", name="later", expires_s=300 * DAY_S)
    rotated = await create_key(migrated, "viewer", name="rotated")
    await rotate_key(migrated, rotated.id, overlap_s=DAY_S)
    async with migrated.transaction() as connection:
        await connection.execute(
            """update api_keys set created_at = created_at - interval '28 days',
                                   expires_at = expires_at - interval '28 days'
                where id = $1""",
            soon.id,
        )
    async with migrated.snapshot() as connection:
        facts = await read_attention(connection, leading=True, violations=())
        expiry = await read_key_expiry(connection)
    assert [key.name for key in facts.keys] == ["soon"]
    assert expiry.keys == {("viewer", "expiring"): 1, ("viewer", "lasting"): 4}
    assert 0 < expiry.next_s["viewer"] - time.time() < 3 * DAY_S


async def test_keys_that_have_expired_are_counted_until_they_are_revoked(migrated: Database) -> None:
    made = await create_key(migrated, "operator", expires_s=DAY_S)
    async with migrated.transaction() as connection:
        await connection.execute("update api_keys set expires_at = now() where id = $1", made.id)
        assert (await read_key_expiry(connection)).keys == {("operator", "expired"): 1}
        await connection.execute("update api_keys set rotated_to = id where id = $1", made.id)
        assert (await read_key_expiry(connection)).keys == {}
        await connection.execute("update api_keys set rotated_to = null, revoked_at = now() where id = $1", made.id)
        assert await read_key_expiry(connection) == KeyExpiry()
