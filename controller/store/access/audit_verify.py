"""Verifies the audit log against its seals, some of them at a time."""

from dataclasses import asdict
from typing import Final

from controller.domain.access.audit_chain import PURPOSE, Finding, Head, Seal, check_seal
from controller.store.access.audit_seals import read_entries, read_head, read_seals
from controller.store.access.secret_keys import SecretKeys
from controller.store.core.database import Reader
from controller.store.views import paging
from schemas.api.audit_log import AuditLogFinding, AuditLogVerification

_SEALS_OF_PAGE: Final = 20
_MOST_ENTRIES: Final = 10_000  # of one seal's range: it has far fewer unless entries were added
_NUMBERS: Final = """
    select coalesce(min(number) - 1, 0) as first, coalesce(max(number), 0) as last from audit_seals"""
_UNSEALED: Final = "select count(*)::int as n from audit_log where id > $1"


async def verify_page(connection: Reader, keys: SecretKeys, cursor: str | None) -> AuditLogVerification:
    """One page, oldest first. In one snapshot.

    Raises:
        BadCursorError: the cursor was not issued here.
    """
    (after,) = paging.open_cursor(cursor, (int,)) or (0,)
    head = await read_head(connection)
    await keys.learn(() if head is None else (head.key_id,))
    if head is None:
        left = await read_seals(connection, 0, 1)
        found = [Finding("head_removed", "the head of the seals was removed")] if left else []
        return _unprotected(_why_none(keys), found)
    key = keys.derived(PURPOSE, head.key_id)
    if key is None:
        return _unprotected(f"the seals were made with key {head.key_id}, which this controller does not have")
    genuine = head.is_authentic(key)
    first, end = (head.anchor_number, head.last_number) if genuine else await _there(connection)
    after = min(max(after, first), end)
    number = min(after + _SEALS_OF_PAGE, end)
    seals = await read_seals(connection, after - 1, _SEALS_OF_PAGE + 2)  # with the one before
    page = [one for one in seals if after < one.number <= number]
    found = [] if genuine else [Finding("head_changed", "the head of the seals was changed")]
    checked = 0
    known = {one.number: (one.last_id, one.digest) for one in seals if one.is_authentic(_key_of(keys, one))}
    if genuine:
        known[head.anchor_number] = (head.anchor_id, head.anchor_digest)
    for one in page:
        entries = await read_entries(connection, one.after_id, one.last_id, limit=_MOST_ENTRIES)
        checked += len(entries)
        if one.number not in known:
            text = f"seal {one.number} was changed: the ids {one.after_id + 1} to {one.last_id} cannot be checked"
            found.append(Finding("seal_changed", text, one.after_id + 1, one.last_id))
        else:
            found += check_seal(one, known.get(one.number - 1), entries)
    found += _missing(range(after + 1, number + 1), {one.number for one in page})
    last = number >= end
    if last and genuine:
        found += await _end(connection, head, known.get(head.last_number))
    (row,) = await connection.fetch(_UNSEALED, head.last_id)
    return AuditLogVerification(
        protected=True,
        since=head.began_at,
        anchor_id=head.anchor_id,
        sealed_id=head.last_id,
        unsealed=row["n"],
        checked=checked,
        findings=_shown(found),
        next=None if last else paging.seal((number,)),
    )


async def _there(connection: Reader) -> tuple[int, int]:
    """The numbers before the first seal that is there, and of the last one."""
    (row,) = await connection.fetch(_NUMBERS)
    return row["first"], row["last"]


async def _end(connection: Reader, head: Head, last: tuple[int, bytes] | None) -> list[Finding]:
    found = []
    if last is not None and last != (head.last_id, head.last_digest):
        found.append(Finding("seal_changed", f"the last seal, {head.last_number}, is not the one that the head names"))
    if more := await read_seals(connection, head.last_number, 1):
        found.append(Finding("seal_added", f"seal {more[0].number} is not in the chain"))
    return found


def _missing(expected: range, there: set[int]) -> list[Finding]:
    return [Finding("seal_removed", f"seal {n} was removed") for n in expected if n not in there]


def _key_of(keys: SecretKeys, one: Seal) -> bytes | None:
    return keys.derived(PURPOSE, one.key_id)


def _why_none(keys: SecretKeys) -> str:
    if keys.current:
        return "nothing is sealed yet; the leader seals within GPUWARD_AUDIT_EVERY_S"
    return "entries are not protected: this controller has no key for secrets; set GPUWARD_SECRETS_KEY_FILE"


def _unprotected(reason: str, found: list[Finding] | None = None) -> AuditLogVerification:
    return AuditLogVerification(protected=False, reason=reason, findings=_shown(found or []))


def _shown(found: list[Finding]) -> list[AuditLogFinding]:
    return [AuditLogFinding(**{**asdict(one), "ids": list(one.ids)}) for one in found]
