"""The secrets of agents' proxies and the key of receipts: when they are sealed, what opens them, what a dump holds."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.decide.attention import find_attention
from controller.domain.effects import StaleError
from controller.domain.start_receipts import open_sealed, seal
from controller.leader.housekeeping import Sealing
from controller.live.endpoints import EndpointReader
from controller.runtime.clock import SystemClock
from controller.store.access.keys import create_key
from controller.store.access.proxy_secrets import PURPOSE, read_key_ids
from controller.store.access.sealing import seal_keys
from controller.store.access.secret_keys import NO_KEYS, SecretKeys, UnreadableSecretError, new_key, parse_keys
from controller.store.access.secrets import put_secret
from controller.store.access.tokens import create_token, redeem
from controller.store.core.database import Database
from controller.store.scaling.gateways import forget_gateway, leave
from controller.store.views.attention import read_attention
from controller.store.views.instances import cache_source
from controller.store.workers.credentials import write_next
from controller.store.workers.sessions import begin_session, find_by_credentials
from rig.agent_messages import hello
from support.database.gateways import long_since, of_the_version_before, with_keys
from support.database.ledger import add_host
from support.database.many_models import add_models

OLD, NEW = new_key(), new_key()
LEASE = "select receipt_key from lease"
PLAIN = "select count(*) from workers where proxy_secret is not null or next_proxy_secret is not null"


def keys_of(*texts: str) -> SecretKeys:
    return SecretKeys(lambda: parse_keys(",".join(texts)) if texts else ())


@pytest.fixture
def keys() -> SecretKeys:
    return keys_of(OLD)


async def value(db: Database, query: str, *args: Any) -> Any:
    async with db.connection() as connection:
        return await connection.fetchval(query, *args)


async def joined(db: Database, keys: SecretKeys, name: str = "gpu-1") -> tuple[str, bytes]:
    """A worker's id, and the hash of its credential."""
    answer = await redeem(db, (await create_token(db)).token, name, keys=keys)
    return answer.worker_uid, await value(db, "select credential_hash from workers where name = $1", name)


async def secret_of(db: Database, keys: SecretKeys, name: str = "gpu-1") -> str | None:
    """As logs are read with it."""
    async with db.snapshot() as connection:
        return (await cache_source(connection, name)).secret.opened(keys.branch(PURPOSE))


async def greet(db: Database, worker: str, hashed: bytes, keys: SecretKeys) -> Any:
    async with db.transaction() as connection:
        return await begin_session(
            connection, worker, hello(), "h:1", identity="a", place="p", judge=lambda _: None,
            credential_hash=hashed, keys=keys,
        )  # fmt: skip


async def receipt_key(db: Database, keys: SecretKeys) -> bytes | None:
    """As the hub proves with it."""
    _, hashed = await joined(db, keys, f"w-{uuid.uuid4().hex[:8]}")
    async with db.connection() as connection:
        return (await find_by_credentials(connection, [hashed], keys))[hashed].proof_key


async def codes(db: Database, keys: SecretKeys) -> dict[str, str]:
    """What needs attention of secrets, with its words."""
    async with db.snapshot() as connection:
        facts = await read_attention(connection, leading=True, violations=(), secret_keys=keys)
    return {one.code: one.message for one in find_attention(facts) if one.cause == "secrets"}


async def test_nothing_is_sealed_before_every_gateway_can_open_it(
    migrated: Database, keys: SecretKeys, tmp_path: Path
) -> None:
    worker, hashed = await joined(migrated, keys)
    secret = await secret_of(migrated, NO_KEYS)
    assert secret is not None
    assert not await seal_keys(migrated, keys), "none has reported: the database may have just come back"
    reports = await with_keys(migrated, tmp_path, keys)
    before = await of_the_version_before(migrated)
    assert not await seal_keys(migrated, keys), "one of the version before reads what is plain"
    assert await secret_of(migrated, NO_KEYS) == secret
    assert "old:8420" in (await codes(migrated, keys))["gateway_without_key"]
    assert "new:8420" not in (await codes(migrated, keys))["gateway_without_key"]
    other = await with_keys(migrated, tmp_path, keys_of(NEW), "other:8420")
    async with migrated.connection() as connection:
        await leave(connection, before)
    assert not await seal_keys(migrated, keys), "one has another key"
    assert "other:8420" in (await codes(migrated, keys))["gateway_without_key"]
    await other.leave()
    assert await seal_keys(migrated, keys)
    assert await value(migrated, PLAIN) == 0
    assert await secret_of(migrated, keys) == secret
    assert await secret_of(migrated, NO_KEYS) is None
    assert (await greet(migrated, worker, hashed, keys)).proxy_secret == secret
    assert await codes(migrated, keys) == {}
    await reports.report({})
    _, _ = await joined(migrated, keys, "gpu-2")
    assert await value(migrated, PLAIN) == 0, "a later one is never plain"


async def test_a_gateway_counts_once_it_has_reported_for_a_while(
    migrated: Database, keys: SecretKeys, tmp_path: Path
) -> None:
    """After a crash of the database it knows no gateway, and those of the version before report a moment later."""
    await joined(migrated, keys)
    reports = await with_keys(migrated, tmp_path, keys)
    async with migrated.transaction() as connection:
        await connection.execute("truncate gateways cascade")
    await reports.report({})
    assert not await seal_keys(migrated, keys)
    await of_the_version_before(migrated)
    await long_since(migrated)
    assert not await seal_keys(migrated, keys)
    async with migrated.transaction() as connection:
        await connection.execute("update gateways set seen_at = now() - interval '1 hour' where name = 'old:8420'")
    assert not await seal_keys(migrated, keys), "a silent one may only be cut off from the database"
    await forget_gateway(migrated, "old:8420")
    assert await seal_keys(migrated, keys)


async def test_a_leader_whose_term_is_over_seals_nothing(migrated: Database, keys: SecretKeys, tmp_path: Path) -> None:
    await joined(migrated, keys)
    await with_keys(migrated, tmp_path, keys)
    term = await value(migrated, "select term from lease")
    with pytest.raises(StaleError):
        await Sealing(migrated, term - 1, SystemClock(), keys).round()
    assert (await value(migrated, PLAIN), await value(migrated, LEASE) is None) == (1, False)
    await Sealing(migrated, term, SystemClock(), keys).round()
    assert (await value(migrated, PLAIN), await value(migrated, LEASE) is None) == (0, True)


async def test_without_a_key_all_stays_as_it_is(migrated: Database, tmp_path: Path) -> None:
    await joined(migrated, NO_KEYS)
    await with_keys(migrated, tmp_path, NO_KEYS)
    secret, key = await secret_of(migrated, NO_KEYS), await value(migrated, LEASE)
    assert not await seal_keys(migrated, NO_KEYS)
    assert (await secret_of(migrated, NO_KEYS), await value(migrated, LEASE)) == (secret, key)
    assert set(await codes(migrated, NO_KEYS)) == {"keys_plain"}


async def test_a_rotation_seals_both_anew_once_gateways_have_the_new_key(
    migrated: Database, keys: SecretKeys, tmp_path: Path
) -> None:
    await joined(migrated, keys)
    reports = await with_keys(migrated, tmp_path, keys)
    assert await seal_keys(migrated, keys)
    secret, key = await secret_of(migrated, keys), await receipt_key(migrated, keys)
    both, new = keys_of(NEW, OLD), keys_of(NEW)
    assert not await seal_keys(migrated, both), "the gateway still has the old one alone"
    assert set(await codes(migrated, both)) == {"gateway_without_key"}
    assert await secret_of(migrated, keys) == secret
    assert await receipt_key(migrated, new) == key, "gateways do not open this one"
    assert keys.branch(PURPOSE).current in await read_key_ids_of(migrated), "the old one is not to be dropped"
    assert keys.current not in await read_key_ids_of(migrated)
    (tmp_path / "new.key").write_text("\n".join(both.branch(PURPOSE).texts()))
    await reports.report({})
    assert await seal_keys(migrated, both)
    assert await secret_of(migrated, new) == secret
    assert await read_key_ids_of(migrated) == {new.current, new.branch(PURPOSE).current}
    assert await codes(migrated, new) == {}


async def read_key_ids_of(db: Database) -> frozenset[str]:
    async with db.connection() as connection:
        return await read_key_ids(connection)


@pytest.mark.parametrize("after", ["both are sealed", "sealing begins between", "the key is lost between"])
async def test_the_next_secret_becomes_the_workers_with_the_next_credential(
    migrated: Database, keys: SecretKeys, tmp_path: Path, after: str
) -> None:
    worker, hashed = await joined(migrated, keys)
    await with_keys(migrated, tmp_path, keys)
    if after != "sealing begins between":
        assert await seal_keys(migrated, keys)
    secret, session = await secret_of(migrated, keys), (await greet(migrated, worker, hashed, keys)).session
    async with migrated.transaction() as connection:
        assert await write_next(connection, worker, session, b"next", "the next secret", keys)
    if after == "sealing begins between":
        assert await seal_keys(migrated, keys)
    now = keys_of(NEW) if after == "the key is lost between" else keys
    if now is keys:
        assert (await greet(migrated, worker, hashed, now)).proxy_secret == secret, "the present credential was given"
    taken = (await greet(migrated, worker, b"next", now)).proxy_secret
    assert (taken == "the next secret") == (now is keys)
    assert await secret_of(migrated, now) == taken
    async with migrated.transaction() as connection:
        next_session = await connection.fetchval("select session from workers where id = $1", uuid.UUID(worker))
        assert await write_next(connection, worker, next_session, b"third", None, now)
    assert (await greet(migrated, worker, b"third", now)).proxy_secret == taken, "an older agent's stays"


async def test_a_secret_whose_key_is_lost_is_replaced_and_the_key_of_receipts_never_is(
    migrated: Database, keys: SecretKeys, tmp_path: Path
) -> None:
    worker, hashed = await joined(migrated, keys)
    reports = await with_keys(migrated, tmp_path, keys)
    assert await seal_keys(migrated, keys)
    secret, key = await secret_of(migrated, keys), await receipt_key(migrated, keys)
    lost = keys_of(NEW)
    assert await secret_of(migrated, lost) is None
    assert {"receipts_unreadable", "gateway_without_key"} <= set(await codes(migrated, lost))
    made = (await greet(migrated, worker, hashed, lost)).proxy_secret
    assert made not in (secret, "")
    assert await secret_of(migrated, lost) == made
    (tmp_path / "new.key").write_text("\n".join(lost.branch(PURPOSE).texts()))
    await reports.report({})
    assert await seal_keys(migrated, lost)
    assert await receipt_key(migrated, lost) is None, "unknown, and not another one"
    assert await receipt_key(migrated, keys_of(NEW, OLD)) == key, "the key was found again"


async def test_a_gateway_without_the_key_leaves_out_what_it_cannot_reach(
    migrated: Database, keys: SecretKeys, tmp_path: Path
) -> None:
    await add_models(migrated, 0, 3)
    await with_keys(migrated, tmp_path, keys)
    with_key, without = EndpointReader(keys.branch(PURPOSE)), EndpointReader(keys_of(NEW).branch(PURPOSE))
    async with migrated.snapshot() as connection:
        before = (await with_key.read(connection))[1]
        assert (await without.read(connection))[1] == before
    assert before
    assert not without.opens_none
    assert await seal_keys(migrated, keys)
    async with migrated.snapshot() as connection:
        assert (await with_key.read(connection))[1] == before
        assert (await without.read(connection))[1] == []
    assert (with_key.opens_none, without.opens_none) == (False, True)
    late = await with_keys(migrated, tmp_path, keys_of(NEW), "late:8420")
    assert "late:8420" in (await codes(migrated, keys))["gateway_locked_out"]
    await late.leave()


def test_the_key_of_proxies_opens_no_secret_and_no_receipt(keys: SecretKeys) -> None:
    proxies = keys.branch(PURPOSE)
    sealed = keys.seal("hf", "token")
    for key_id in (*keys.ids, *proxies.ids):
        with pytest.raises(UnreadableSecretError):
            proxies.open("hf", key_id, sealed)
    given = keys_of(*proxies.texts())
    assert given.ids == proxies.ids, "a gateway has the same, from a file"
    with pytest.raises(UnreadableSecretError):
        given.open("hf", given.current, sealed)


async def test_no_word_of_a_dump_opens_anything(migrated: Database, keys: SecretKeys, tmp_path: Path) -> None:
    """Every value of every column, in parts too: as an API key, a proxy's secret, a webhook's, the key of receipts."""
    worker, hashed = await joined(migrated, keys)
    await add_host(migrated, "gpu-2")
    await with_keys(migrated, tmp_path, keys)
    await put_secret(migrated, "hook", "webhook-secret-value", keys)
    key = await create_key(migrated, "admin", name="ci")
    session = (await greet(migrated, worker, hashed, keys)).session
    async with migrated.transaction() as connection:
        await write_next(connection, worker, session, b"next", "next-proxy-secret", keys)
    open_words = {"next-proxy-secret", "webhook-secret-value", key.key, await secret_of(migrated, keys)}
    receipt = seal({"worker_id": worker}, await value(migrated, LEASE))
    assert "next-proxy-secret" in [text async for text in words(migrated)], "the search would find it"
    assert await seal_keys(migrated, keys)
    found = [word async for word in words(migrated)]
    assert len(found) > 50
    assert open_words.isdisjoint(found)
    for word in found:
        for candidate in key_candidates(word):
            assert open_sealed(receipt, candidate) is None
    for one in open_words:
        assert one is not None
        assert not any(one in str(word) for word in found)


async def words(db: Database) -> Any:
    """All values of all tables."""
    async with db.snapshot() as connection:
        tables = await connection.fetch("select tablename from pg_tables where schemaname = current_schema()")
        for table in tables:
            for row in await connection.fetch(f'select * from "{table["tablename"]}"'):  # noqa: S608 - the catalog's
                for found in row.values():
                    for part in parts(found):
                        yield part


def parts(found: Any) -> Iterator[Any]:
    match found:
        case dict():
            for name, one in found.items():
                yield name
                yield from parts(one)
        case list() | tuple():
            for one in found:
                yield from parts(one)
        case str() | bytes():
            yield found
        case _:
            yield str(found)


def key_candidates(word: Any) -> Iterator[bytes]:
    if isinstance(word, bytes):
        yield word
        return
    yield word.encode()
    try:
        yield bytes.fromhex(word)
    except ValueError:
        return
