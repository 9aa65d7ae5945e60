"""The audit log's seals: what is removed, changed or added shows; retention, rotations and older leaders do not."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from controller.store.access import audit_seals as audit_verify
from controller.store.access.audit_log import Entry, prune_entries, write_entries
from controller.store.access.audit_seals import renew_seals, seal_entries, settled_id, verify_page
from controller.store.access.secret_keys import NO_KEYS, SecretKeys, new_key, parse_keys
from controller.store.access.secrets import put_secret
from controller.store.core.database import Database
from schemas.api.audit import AuditLogVerification
from support.database.ledger import rows

KEEP_DAYS = 90
OLD, NEW = new_key(), new_key()
KEYS = SecretKeys(lambda: parse_keys(OLD))


async def keep(db: Database, keys: SecretKeys = KEYS, *, days: int = KEEP_DAYS) -> None:
    """As the leader does in each round."""
    async with db.transaction() as connection:
        settled = await settled_id(connection)
    async with db.transaction() as connection:
        up_to = await seal_entries(connection, keys, settled, keep_days=days)
    async with db.transaction() as connection:
        await prune_entries(connection, keep_days=days, up_to=up_to)


async def add(db: Database, *actions: str, days_ago: float = 0) -> None:
    at = datetime.now(UTC) - timedelta(days=days_ago)
    async with db.transaction() as connection:
        await write_entries(connection, [Entry("key:a", action, "done", at=at) for action in actions])


async def verify(db: Database, keys: SecretKeys = KEYS) -> AuditLogVerification:
    """All pages."""
    findings, cursor = [], None
    for _ in range(100):
        async with db.snapshot() as connection:
            page = await verify_page(connection, keys, cursor)
        findings += page.findings
        cursor = page.next
        if cursor is None:
            return replace(page, findings=findings)
    raise AssertionError("it never ends")


async def kinds(db: Database, keys: SecretKeys = KEYS) -> set[str]:
    found = await verify(db, keys)
    assert found.protected, found.reason
    return {one.kind for one in found.findings}


async def execute(db: Database, query: str) -> None:
    async with db.transaction() as connection:
        await connection.execute(query)


@pytest.fixture(params=[1, 20])
async def sealed(migrated: Database, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Database:
    """Four seals: an entry of its own, three, two, one; verified in pages of one seal, and in one page."""
    monkeypatch.setattr(audit_verify, "_SEALS_OF_PAGE", request.param)
    await add(migrated, "before")
    for actions in (("a", "b", "c"), ("d", "e"), ("f",)):
        await keep(migrated)
        await add(migrated, *actions)
    await keep(migrated)
    return migrated


@pytest.mark.parametrize(
    ("tampering", "expected"),
    [
        ("select 1", set()),
        ("delete from audit_log where action = 'b'", {"entries_removed"}),
        ("delete from audit_log where action = 'f'", {"entries_removed"}),
        ("delete from audit_log", {"entries_removed"}),
        ("update audit_log set actor = 'key:b' where action = 'd'", {"entries_changed"}),
        ("update audit_log set at = at - interval '1 day' where action = 'd'", {"entries_changed"}),
        ("update audit_log set left_out = 7 where action = 'f'", {"entries_changed"}),
        ("update audit_seals set ids = ids[2:] where number = 2", {"seal_changed"}),
        ("delete from audit_seals where number = 2", {"seal_removed"}),
        ("delete from audit_log where action = 'f'; delete from audit_seals where number = 4", {"seal_removed"}),
        ("delete from audit_seals", {"seal_removed"}),
        (
            """insert into audit_seals
               select 5, last_id, last_id, ids, newest, digest, key_id, mac from audit_seals limit 1""",
            {"seal_added"},
        ),
        ("update audit_seals_head set last_number = 3", {"head_changed"}),
        ("update audit_seals_head set anchor_id = last_id, anchor_number = last_number", {"head_changed"}),
        ("update audit_seals_head set last_number = 4000000000", {"head_changed"}),
    ],
)  # fmt: skip
async def test_what_is_done_to_the_log_shows(sealed: Database, tampering: str, expected: set[str]) -> None:
    await execute(sealed, tampering)
    assert await kinds(sealed) == expected
    await add(sealed, "later")
    for _ in range(2):  # the leader seals on, and repairs nothing
        await keep(sealed)
    assert await kinds(sealed) >= expected - {"seal_added"}


async def test_the_ids_of_removed_entries_are_named(sealed: Database) -> None:
    gone = [row["id"] for row in await rows(sealed, "delete from audit_log where action in ('a', 'c') returning id")]
    (found,) = (await verify(sealed)).findings
    assert (found.kind, found.ids) == ("entries_removed", sorted(gone))


async def test_a_removed_head_shows_until_and_after_the_seals_begin_again(sealed: Database) -> None:
    began = (await verify(sealed)).since
    await execute(sealed, "delete from audit_seals_head")
    found = await verify(sealed)
    assert (found.protected, [one.kind for one in found.findings]) == (False, ["head_removed"])
    await keep(sealed)
    again = await verify(sealed)
    assert again.since is not None
    assert began is not None
    assert again.since > began
    assert len(await rows(sealed, "select 1 from audit_log where action = 'audit-log.seal'")) == 2


async def test_entries_of_transactions_that_end_late_are_sealed_and_none_looks_added(migrated: Database) -> None:
    await keep(migrated)
    async with migrated.transaction() as slow:
        await write_entries(slow, [Entry("key:a", "slow", "done")])
        await add(migrated, "fast")  # has a higher id, and is there first
        keeping = asyncio.create_task(keep(migrated))
        await asyncio.sleep(0.3)
    await keeping
    await add(migrated, "last")
    await keep(migrated)
    found = await verify(migrated)
    assert (found.findings, found.unsealed) == ([], 0)
    await execute(migrated, "delete from audit_log where action = 'slow'")
    assert await kinds(migrated) == {"entries_removed"}


async def test_retention_raises_no_alarm_and_deletes_no_more_than_is_old(migrated: Database) -> None:
    for days in (120, 100, 89.5, 88, 1):
        await add(migrated, f"{days}", days_ago=days)
    await keep(migrated)
    await keep(migrated)
    assert {row["action"] for row in await rows(migrated, "select action from audit_log")} == {
        "89.5", "88", "1", "audit-log.seal",
    }  # fmt: skip
    assert await kinds(migrated) == set()
    async with migrated.transaction() as connection:  # an older leader, which knows of no seals, prunes hours later
        await connection.execute("delete from audit_log where at < now() - interval '89 days'")
    assert await kinds(migrated) == set()
    await keep(migrated, days=30)  # as if two months had passed
    await keep(migrated, days=30)
    assert await kinds(migrated) == set()
    assert {row["action"] for row in await rows(migrated, "select action from audit_log")} == {"1", "audit-log.seal"}
    await execute(migrated, "delete from audit_log where action = '1'")
    assert await kinds(migrated) == {"entries_removed"}


async def test_a_rotation_makes_nothing_good_that_was_changed(sealed: Database) -> None:
    await execute(sealed, "update audit_seals set ids = ids[2:] where number = 2")
    await renew_seals(sealed, SecretKeys(lambda: parse_keys(f"{NEW},{OLD}")))
    assert await kinds(sealed, SecretKeys(lambda: parse_keys(NEW))) == {"seal_changed"}
    await execute(sealed, "update audit_seals_head set anchor_id = 7")
    await renew_seals(sealed, SecretKeys(lambda: parse_keys(f"{OLD},{NEW}")))
    assert await kinds(sealed, SecretKeys(lambda: parse_keys(f"{OLD},{NEW}"))) == {"seal_changed", "head_changed"}


async def test_a_leader_without_the_key_that_others_have_leaves_the_seals(sealed: Database) -> None:
    await put_secret(sealed, "hf", "value", KEYS)
    await add(sealed, "old", days_ago=91)
    await keep(sealed, SecretKeys(lambda: parse_keys(NEW)))
    await keep(sealed, NO_KEYS)
    await keep(sealed)
    assert await kinds(sealed) == set()
    assert len(await rows(sealed, "select 1 from audit_log where action = 'audit-log.seal'")) == 1


async def test_after_a_rotation_the_old_key_may_go(sealed: Database) -> None:
    both = SecretKeys(lambda: parse_keys(f"{NEW},{OLD}"))
    await keep(sealed, both)  # between the new key and the end of the rotation, under the old one
    await renew_seals(sealed, both)
    after = SecretKeys(lambda: parse_keys(NEW))
    assert await kinds(sealed, after) == set()
    await add(sealed, "later")
    await keep(sealed, after)
    assert await kinds(sealed, after) == set()
    assert len(await rows(sealed, "select 1 from audit_log where action = 'audit-log.seal'")) == 1
    await execute(sealed, "delete from audit_log where action = 'b'")
    assert await kinds(sealed, after) == {"entries_removed"}


async def test_with_a_lost_key_they_begin_again(sealed: Database) -> None:
    after = SecretKeys(lambda: parse_keys(NEW))
    found = await verify(sealed, after)
    assert (found.protected, KEYS.current in found.reason) == (False, True)
    await keep(sealed, after)
    await keep(sealed, after)
    assert await kinds(sealed, after) == set()
    await execute(sealed, "delete from audit_log where action = 'b'")
    assert await kinds(sealed, after) == {"entries_removed"}


async def test_without_a_key_it_says_so_and_old_entries_go(migrated: Database) -> None:
    await add(migrated, "old", days_ago=91)
    await add(migrated, "new")
    await keep(migrated, NO_KEYS)
    assert [row["action"] for row in await rows(migrated, "select action from audit_log")] == ["new"]
    found = await verify(migrated, NO_KEYS)
    assert (found.protected, found.findings) == (False, [])
    assert "GPUWARD_SECRETS_KEY_FILE" in found.reason


async def test_a_wrong_clock_does_not_hold_up_retention(migrated: Database) -> None:
    await add(migrated, "future", days_ago=-400)
    await keep(migrated)
    assert await kinds(migrated) == set()
    async with migrated.transaction() as connection:
        assert await connection.fetchval("select newest < clock_timestamp() from audit_seals where number = 1")
