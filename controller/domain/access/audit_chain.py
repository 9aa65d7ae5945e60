"""The chain of seals over the audit log. Pure.

A seal covers the entries of a range of ids, and its digest the digest before it. The head names the first and the last
seal. Both are authenticated with a key that the database does not hold: a writer of its rows cannot make them.
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal

import orjson

from schemas.printing import first_of

PURPOSE: Final = b"gpuward audit log seals"  # of the key
NO_DIGEST: Final = b""
ENTRY_FIELDS: Final = (
    "id", "at", "actor", "key_id", "address", "action", "object", "outcome", "status", "code", "request_id", "left_out",
)  # fmt: skip

Kind = Literal[
    "entries_removed", "entries_added", "entries_changed", "seal_removed", "seal_changed", "seal_added", "head_removed",
    "head_changed",
]  # fmt: skip

_IDS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Seal:
    """A row of `audit_seals`."""

    number: int
    after_id: int
    last_id: int
    ids: tuple[int, ...]
    newest: datetime
    digest: bytes
    key_id: str
    mac: bytes = b""

    def under(self, key_id: str, key: bytes) -> "Seal":
        """The seal, authenticated with this key."""
        bare = replace(self, key_id=key_id)
        return replace(bare, mac=_mac(key, "seal", bare))

    def is_authentic(self, key: bytes | None) -> bool:
        """Whether the key made it; False if this process lacks the key."""
        return key is not None and hmac.compare_digest(self.mac, _mac(key, "seal", self))


@dataclass(frozen=True, slots=True)
class Head:
    """The row of `audit_seals_head`."""

    began_at: datetime
    anchor_number: int
    anchor_id: int
    anchor_digest: bytes
    last_number: int
    last_id: int
    last_digest: bytes
    key_id: str
    mac: bytes = b""

    def under(self, key_id: str, key: bytes) -> "Head":
        bare = replace(self, key_id=key_id)
        return replace(bare, mac=_mac(key, "head", bare))

    def is_authentic(self, key: bytes | None) -> bool:
        return key is not None and hmac.compare_digest(self.mac, _mac(key, "head", self))


@dataclass(frozen=True, slots=True)
class Finding:
    """A deviation from what was sealed. `ids`: of the entries; empty: `first_id` to `last_id`."""

    kind: Kind
    message: str
    first_id: int = 0
    last_id: int = 0
    ids: tuple[int, ...] = ()


def digest_of(previous: bytes, entries: Iterable[Sequence[Any]]) -> bytes:
    """A digest over the previous digest and the entries, each with the values of `ENTRY_FIELDS`."""
    made = hashlib.sha256(len(previous).to_bytes(1) + previous)
    for entry in entries:
        made.update(orjson.dumps([_plain(value) for value in entry]) + b"\n")
    return made.digest()


def next_seal(head: Head, entries: Sequence[Sequence[Any]], now: datetime) -> Seal:
    """The seal of the entries that follow the head's `last_id`, at least one; not authenticated yet."""
    return Seal(
        number=head.last_number + 1,
        after_id=head.last_id,
        last_id=entries[-1][0],
        ids=tuple(entry[0] for entry in entries),
        newest=min(now, max(entry[1] for entry in entries)),  # a wrong clock must not hold up retention
        digest=digest_of(head.last_digest, entries),
        key_id=head.key_id,
    )


def check_seal(seal: Seal, previous: tuple[int, bytes] | None, entries: Sequence[Sequence[Any]]) -> list[Finding]:
    """The deviations of an authentic seal from the chain, and of the entries of its range.

    `previous`: `last_id` and digest of the seal before it; None: that seal is missing. `entries`: by id.
    """
    there, sealed = {entry[0] for entry in entries}, set(seal.ids)
    findings: list[Finding] = []
    if missing := tuple(sorted(sealed - there)):
        text = f"{len(missing)} entries were removed: ids {first_of(missing, _IDS_SHOWN)}"
        findings.append(Finding("entries_removed", text, missing[0], missing[-1], missing))
    if more := tuple(sorted(there - sealed)):
        text = f"{len(more)} entries were added: ids {first_of(more, _IDS_SHOWN)}"
        findings.append(Finding("entries_added", text, more[0], more[-1], more))
    if previous is None or findings:
        return findings
    if seal.after_id != previous[0] or digest_of(previous[1], entries) != seal.digest:
        text = f"entries were changed: at least one of the ids {seal.after_id + 1} to {seal.last_id}"
        findings.append(Finding("entries_changed", text, seal.after_id + 1, seal.last_id))
    return findings


def _mac(key: bytes, label: str, row: Seal | Head) -> bytes:
    values = [getattr(row, name) for name in row.__slots__ if name != "mac"]
    return hmac.digest(key, orjson.dumps([label, *map(_plain, values)]), hashlib.sha256)


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds")
        case bytes():
            return value.hex()
        case tuple():
            return list(value)
        case _:
            return value
