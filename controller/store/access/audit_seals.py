"""Seals the audit log in batches, frees what is old, and seals it under a new key."""

from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from controller.domain.access.audit_chain import ENTRY_FIELDS, NO_DIGEST, PURPOSE, Head, Seal, next_seal
from controller.store.access.audit_log import Entry, write_entries
from controller.store.access.secret_keys import SecretKeys
from controller.store.core.database import Database, Reader

log = structlog.get_logger(__name__)

_ENTRIES_OF_SEAL: Final = 1_000
_SPAN: Final = timedelta(hours=1)  # of a seal's entries, so that old ones need not wait long for newer ones
SEALS_AT_ONCE: Final = 100
# Writers hold a lock that excludes this one until they commit: none of them can still add an id at or below this one.
_SETTLED: Final = "select coalesce(max(id), 0) from audit_log"
_HEAD_COLUMNS: Final = tuple(one.name for one in fields(Head))
_SEAL_COLUMNS: Final = tuple(one.name for one in fields(Seal))
_ENTRIES: Final = f"""
    select {", ".join(ENTRY_FIELDS)} from audit_log where id > $1 and id <= $2 order by id limit $3"""  # noqa: S608
_SEALS: Final = f"""
    select {", ".join(_SEAL_COLUMNS)} from audit_seals
     where number > $1 and ($3::timestamptz is null or newest < $3) order by number limit $2"""  # noqa: S608
_OLDER_KEY: Final = f"""
    select {", ".join(_SEAL_COLUMNS)} from audit_seals
     where number > $1 and key_id <> $2 order by number limit $3 for update"""  # noqa: S608
# Then the key is not lost: only this controller does not have it.
_IN_USE: Final = "select exists (select from secrets where key_id = $1)"
_RENEW: Final = "update audit_seals set key_id = $2, mac = $3 where number = $1"
_BEGIN_AT: Final = "select coalesce(min(id) - 1, $2) from audit_log where at >= now() - $1::interval"
_MARGIN: Final = timedelta(days=1)


async def read_head(connection: Reader, *, lock: bool = False) -> Head | None:
    """The head; None: nothing is sealed."""
    columns, locked = ", ".join(_HEAD_COLUMNS), " for update" if lock else ""
    rows = await connection.fetch(f"select {columns} from audit_seals_head{locked}")  # noqa: S608 - our names
    return Head(**dict(rows[0])) if rows else None


async def read_seals(connection: Reader, after: int, limit: int, *, before: datetime | None = None) -> list[Seal]:
    """The seals above a number, in order. `before`: only those whose entries are older than that moment."""
    return [_seal(row) for row in await connection.fetch(_SEALS, after, limit, before)]


async def read_entries(connection: Reader, after_id: int, last_id: int, *, limit: int) -> list[tuple[Any, ...]]:
    """The first entries of a range, by id, as the digest takes them."""
    return [tuple(row.values()) for row in await connection.fetch(_ENTRIES, after_id, last_id, limit)]


async def settled_id(connection: Any) -> int:
    """The id up to which no entry can come any more. In a short transaction of its own: writers wait for it."""
    await connection.execute("set local lock_timeout = '2s'")
    await connection.execute("lock table audit_log in share mode")
    return int(await connection.fetchval(_SETTLED))


async def seal_entries(connection: Any, keys: SecretKeys, settled: int, *, keep_days: int) -> int | None:
    """Seals some entries up to the settled id, and moves the anchor over old ones. In the leader's transaction.

    Returns:
        Up to which id old entries may be deleted; None: nothing can be sealed here, so that all may.
    """
    head = await read_head(connection, lock=True)
    await keys.learn(() if head is None else (head.key_id,))
    if head is not None and head.key_id not in keys.ids and await connection.fetchval(_IN_USE, head.key_id):
        log.error("another controller's key seals the audit log; give it to this one", key=head.key_id)
        return head.anchor_id
    if not keys.current:
        return None
    keep = timedelta(days=keep_days)
    protected = keep - min(_MARGIN, keep / 2)
    key = None if head is None else keys.derived(PURPOSE, head.key_id)
    if head is None or key is None:
        key = keys.derived(PURPOSE, keys.current) or b""
        head = await _begin(connection, keys.current, key, settled, protected)
    elif not head.is_authentic(key):
        log.error("the audit log's seals were changed; see: gpuward audit-log verify")
        return head.anchor_id  # nothing is sealed or deleted, so that it can be looked at
    after = await _free(connection, await _append(connection, head, key, settled), key, protected)
    if after != head:
        await _write_head(connection, after.under(head.key_id, key))
    return after.anchor_id


async def renew_seals(database: Database, keys: SecretKeys) -> None:
    """Authenticates the seals under the present key. One that its key did not make stays as it is."""
    if not keys.current:
        return
    new = keys.derived(PURPOSE, keys.current) or b""
    async with database.transaction() as connection:  # first, so that the leader seals under the new key from now on
        head = await read_head(connection, lock=True)
        if head is None:
            return
        if head.key_id != keys.current and head.is_authentic(keys.derived(PURPOSE, head.key_id)):
            await _write_head(connection, head.under(keys.current, new))
    after: int | None = 0
    while after is not None:
        async with database.transaction() as connection:
            seals = [_seal(row) for row in await connection.fetch(_OLDER_KEY, after, keys.current, SEALS_AT_ONCE)]
            made = [s.under(keys.current, new) for s in seals if s.is_authentic(keys.derived(PURPOSE, s.key_id))]
            await connection.executemany(_RENEW, [(seal.number, seal.key_id, seal.mac) for seal in made])
        after = seals[-1].number if seals else None


async def _begin(connection: Any, key_id: str, key: bytes, settled: int, protected: timedelta) -> Head:
    """Begins with what is there, and leaves an entry about it: what was before is not protected."""
    await connection.execute("delete from audit_seals")
    await connection.execute("delete from audit_seals_head")
    anchor = await connection.fetchval(_BEGIN_AT, protected, settled)
    began = await connection.fetchval("select clock_timestamp()")
    head = Head(began, 0, anchor, NO_DIGEST, 0, anchor, NO_DIGEST, key_id).under(key_id, key)
    marks = ", ".join(f"${n}" for n, _ in enumerate(_HEAD_COLUMNS, 1))
    columns = ", ".join(_HEAD_COLUMNS)
    await connection.execute(f"insert into audit_seals_head ({columns}) values ({marks})", *astuple(head))  # noqa: S608
    await write_entries(connection, [Entry("leader", "audit-log.seal", "done", "audit-log")])
    log.warning("the seals of the audit log begin: what is removed from now on shows", entries_from=anchor + 1)
    return head


async def _append(connection: Any, head: Head, key: bytes, settled: int) -> Head:
    made: list[Seal] = []
    now = await connection.fetchval("select clock_timestamp()")
    while head.last_id < settled and len(made) < SEALS_AT_ONCE:
        entries = within_span(await read_entries(connection, head.last_id, settled, limit=_ENTRIES_OF_SEAL))
        if not entries:
            break
        seal = next_seal(head, entries, now).under(head.key_id, key)
        head = replace(head, last_number=seal.number, last_id=seal.last_id, last_digest=seal.digest)
        made.append(seal)
    marks = ", ".join(f"${n}" for n, _ in enumerate(_SEAL_COLUMNS, 1))
    statement = f"insert into audit_seals ({', '.join(_SEAL_COLUMNS)}) values ({marks}) on conflict do nothing"  # noqa: S608
    await connection.executemany(statement, [astuple(seal) for seal in made])
    return head


async def _free(connection: Any, head: Head, key: bytes, protected: timedelta) -> Head:
    """The head with its anchor behind the seals whose entries are all old. A changed one stays, and those behind it."""
    before = await connection.fetchval("select clock_timestamp() - $1::interval", protected)
    for seal in await read_seals(connection, head.anchor_number, SEALS_AT_ONCE, before=before):
        follows = (seal.number, seal.after_id) == (head.anchor_number + 1, head.anchor_id)
        if not follows or not seal.is_authentic(key):
            break
        head = replace(head, anchor_number=seal.number, anchor_id=seal.last_id, anchor_digest=seal.digest)
    await connection.execute("delete from audit_seals where number <= $1", head.anchor_number)
    return head


async def _write_head(connection: Any, head: Head) -> None:
    pairs = ", ".join(f"{name} = ${n}" for n, name in enumerate(_HEAD_COLUMNS, 1))
    await connection.execute(f"update audit_seals_head set {pairs}", *astuple(head))  # noqa: S608 - our names


def _seal(row: Any) -> Seal:
    return Seal(**{**dict(row), "ids": tuple(row["ids"])})


def within_span(entries: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """The first of these entries that lie within an hour, so that the old need not be kept for far newer ones."""
    end = next((n for n, entry in enumerate(entries) if entry[1] - entries[0][1] > _SPAN), len(entries))
    return entries[:end]
