"""Seals the audit log in batches, frees what is old, seals it under a new key, and verifies it."""

from collections.abc import Sequence
from dataclasses import asdict, astuple, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from controller.domain.access.audit_chain import (
    ENTRY_FIELDS,
    NO_DIGEST,
    PURPOSE,
    Finding,
    Head,
    Seal,
    check_seal,
    next_seal,
)
from controller.store.access.audit_log import Entry, write_entries
from controller.store.access.secret_keys import SecretKeys
from controller.store.core.database import Database, Reader
from controller.store.views import paging
from schemas.api.audit import AuditLogFinding, AuditLogVerification

log = structlog.get_logger(__name__)

_ENTRIES_OF_SEAL: Final = 1_000
_SPAN: Final = timedelta(hours=1)  # of a seal's entries, so that old entries need not be kept for far newer ones
SEALS_AT_ONCE: Final = 100
# Writers hold a lock that excludes this lock until they commit: no writer can still add an id up to this maximum.
_SETTLED: Final = "select coalesce(max(id), 0) from audit_log"
_HEAD_COLUMNS: Final = tuple(field.name for field in fields(Head))
_SEAL_COLUMNS: Final = tuple(field.name for field in fields(Seal))
_ENTRIES: Final = f"""
    select {", ".join(ENTRY_FIELDS)} from audit_log where id > $1 and id <= $2 order by id limit $3"""  # noqa: S608
_SEALS: Final = f"""
    select {", ".join(_SEAL_COLUMNS)} from audit_seals
     where number > $1 and ($3::timestamptz is null or newest < $3) order by number limit $2"""  # noqa: S608
_OLDER_KEY: Final = f"""
    select {", ".join(_SEAL_COLUMNS)} from audit_seals
     where number > $1 and key_id <> $2 order by number limit $3 for update"""  # noqa: S608
# If so, the key is not lost: only this controller does not have it.
_IN_USE: Final = "select exists (select from secrets where key_id = $1)"
_RENEW: Final = "update audit_seals set key_id = $2, mac = $3 where number = $1"
_BEGIN_AT: Final = "select coalesce(min(id) - 1, $2) from audit_log where at >= now() - $1::interval"
_MARGIN: Final = timedelta(days=1)
_SEALS_OF_PAGE: Final = 20
_MOST_ENTRIES: Final = 10_000  # of a seal's range, which has far fewer unless entries were added
_NUMBERS: Final = """
    select coalesce(min(number) - 1, 0) as first, coalesce(max(number), 0) as last from audit_seals"""
_UNSEALED: Final = "select count(*)::int as n from audit_log where id > $1"


async def read_head(connection: Reader, *, lock: bool = False) -> Head | None:
    """The head; None if nothing is sealed."""
    columns, locked = ", ".join(_HEAD_COLUMNS), " for update" if lock else ""
    rows = await connection.fetch(f"select {columns} from audit_seals_head{locked}")  # noqa: S608 - our names
    return Head(**dict(rows[0])) if rows else None


async def read_seals(connection: Reader, after: int, limit: int, *, before: datetime | None = None) -> list[Seal]:
    """The seals above a number, in order. `before`: only those whose entries are older."""
    return [_seal(row) for row in await connection.fetch(_SEALS, after, limit, before)]


async def read_entries(connection: Reader, after_id: int, last_id: int, *, limit: int) -> list[tuple[Any, ...]]:
    """The first entries of a range, by id, in the form that is digested."""
    return [tuple(row.values()) for row in await connection.fetch(_ENTRIES, after_id, last_id, limit)]


async def settled_id(connection: Any) -> int:
    """The id up to which no entry can be added any more. In a short transaction of its own: writers wait for it."""
    await connection.execute("set local lock_timeout = '2s'")
    await connection.execute("lock table audit_log in share mode")
    return int(await connection.fetchval(_SETTLED))


async def seal_entries(connection: Any, keys: SecretKeys, settled: int, *, keep_days: int) -> int | None:
    """Seals some entries up to the settled id, and moves the anchor over old ones. In the leader's transaction.

    Returns:
        The id up to which old entries may be deleted; None: all may, since nothing can be sealed here.
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
        return head.anchor_id  # nothing is sealed or deleted, so that it can be examined
    after = await _free(connection, await _append(connection, head, key, settled), key, protected)
    if after != head:
        await _write_head(connection, after.under(head.key_id, key))
    return after.anchor_id


async def renew_seals(database: Database, keys: SecretKeys) -> None:
    """Authenticates the seals under the present key. A seal that its key did not make stays as it is."""
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
    """Starts the seals at the present entries, and writes an entry about it: earlier changes are not detected."""
    await connection.execute("delete from audit_seals")
    await connection.execute("delete from audit_seals_head")
    anchor = await connection.fetchval(_BEGIN_AT, protected, settled)
    started = await connection.fetchval("select clock_timestamp()")
    head = Head(started, 0, anchor, NO_DIGEST, 0, anchor, NO_DIGEST, key_id).under(key_id, key)
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
    """The head with its anchor behind the seals whose entries are all old; it stops at a changed seal."""
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
    """The first of these entries that lie within `_SPAN`."""
    end = next((n for n, entry in enumerate(entries) if entry[1] - entries[0][1] > _SPAN), len(entries))
    return entries[:end]


async def verify_page(connection: Reader, keys: SecretKeys, cursor: str | None) -> AuditLogVerification:
    """Verifies a page, oldest first. In one snapshot.

    Raises:
        BadCursorError: the cursor was not issued here.
    """
    (after,) = paging.open_cursor(cursor, (int,)) or (0,)
    head = await read_head(connection)
    await keys.learn(() if head is None else (head.key_id,))
    if head is None:
        left = await read_seals(connection, 0, 1)
        findings = [Finding("head_removed", "the head of the seals was removed")] if left else []
        return _unprotected(_why_none(keys), findings)
    key = keys.derived(PURPOSE, head.key_id)
    if key is None:
        return _unprotected(f"the seals were made with key {head.key_id}, which this controller does not have")
    genuine = head.is_authentic(key)
    first, end = (head.anchor_number, head.last_number) if genuine else await _stored_range(connection)
    after = min(max(after, first), end)
    number = min(after + _SEALS_OF_PAGE, end)
    seals = await read_seals(connection, after - 1, _SEALS_OF_PAGE + 2)  # with the previous seal
    page = [seal for seal in seals if after < seal.number <= number]
    findings = [] if genuine else [Finding("head_changed", "the head of the seals was changed")]
    checked = 0
    known = {s.number: (s.last_id, s.digest) for s in seals if s.is_authentic(keys.derived(PURPOSE, s.key_id))}
    if genuine:
        known[head.anchor_number] = (head.anchor_id, head.anchor_digest)
    for seal in page:
        entries = await read_entries(connection, seal.after_id, seal.last_id, limit=_MOST_ENTRIES)
        checked += len(entries)
        if seal.number not in known:
            text = f"seal {seal.number} was changed: the ids {seal.after_id + 1} to {seal.last_id} cannot be checked"
            findings.append(Finding("seal_changed", text, seal.after_id + 1, seal.last_id))
        else:
            findings += check_seal(seal, known.get(seal.number - 1), entries)
    stored = {seal.number for seal in page}
    missing = (n for n in range(after + 1, number + 1) if n not in stored)
    findings += [Finding("seal_removed", f"seal {n} was removed") for n in missing]
    last = number >= end
    if last and genuine:
        findings += await _check_end(connection, head, known.get(head.last_number))
    (row,) = await connection.fetch(_UNSEALED, head.last_id)
    return AuditLogVerification(
        protected=True,
        since=head.began_at,
        anchor_id=head.anchor_id,
        sealed_id=head.last_id,
        unsealed=row["n"],
        checked=checked,
        findings=_shown(findings),
        next=None if last else paging.seal((number,)),
    )


async def _stored_range(connection: Reader) -> tuple[int, int]:
    """The number before the first stored seal, and that of the last."""
    (row,) = await connection.fetch(_NUMBERS)
    return row["first"], row["last"]


async def _check_end(connection: Reader, head: Head, last: tuple[int, bytes] | None) -> list[Finding]:
    findings = []
    if last is not None and last != (head.last_id, head.last_digest):
        text = f"the last seal, {head.last_number}, is not the one that the head names"
        findings.append(Finding("seal_changed", text))
    if more := await read_seals(connection, head.last_number, 1):
        findings.append(Finding("seal_added", f"seal {more[0].number} is not in the chain"))
    return findings


def _why_none(keys: SecretKeys) -> str:
    if keys.current:
        return "nothing is sealed yet; the leader seals within GPUWARD_AUDIT_EVERY_S"
    return "entries are not protected: this controller has no key for secrets; set GPUWARD_SECRETS_KEY_FILE"


def _unprotected(reason: str, findings: Sequence[Finding] = ()) -> AuditLogVerification:
    return AuditLogVerification(protected=False, reason=reason, findings=_shown(findings))


def _shown(findings: Sequence[Finding]) -> list[AuditLogFinding]:
    return [AuditLogFinding(**{**asdict(finding), "ids": list(finding.ids)}) for finding in findings]
