"""Reads for checks of keys and browsers' sessions, without an ORM: the principal of a hash."""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from controller.store.core.database import Reader
from schemas.api.access import Role
from schemas.key_limits import NO_LIMITS, KeyLimits

KEY_PREFIX: Final = "gpw_"
SESSION_COOKIE: Final = "gpuward_session"
SECURE_SESSION_COOKIE: Final = "__Host-gpuward_session"  # behind TLS: browsers take it from this host alone
SESSION_PREFIX: Final = "gps_"
_SESSION_DOMAIN: Final = "session\0"  # no header can hold it, so that no API key can be a session
_COLUMNS: Final = (
    "hash, id, name, role, models, rpm, tpm, tokens_per_day, parallel, "
    "extract(epoch from expires_at - now())::float8 as expires_in_s"
)
_VALID: Final = "revoked_at is null and (expires_at is null or expires_at > now())"
_SESSION_COLUMNS: Final = (
    "s.hash, k.id, k.name, k.role, k.models, k.rpm, k.tpm, k.tokens_per_day, k.parallel, "
    "extract(epoch from least(k.expires_at, s.expires_at) - now())::float8 as expires_in_s"
)
_SESSIONS: Final = (
    "browser_sessions s join api_keys k on k.id = s.key_id where k.revoked_at is null "
    "and (k.expires_at is null or k.expires_at > now()) and s.expires_at > now()"
)


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller, as its key identifies it.

    Attributes:
        limits: the bounds on its requests to models.
        expires_in_s: seconds from its read until it expires; None: never.
        session: the name of its browser session; empty: the caller sent the key itself.
    """

    key_id: str
    name: str
    role: Role
    limits: KeyLimits = NO_LIMITS
    expires_in_s: float | None = None
    session: str = ""

    @property
    def credential(self) -> str:
        """The session, else the key: its end ends the caller's streams."""
        return self.session or self.key_id


def session_credential(token: str) -> str:
    """The credential of a session's cookie; empty if it is malformed."""
    return _SESSION_DOMAIN + token if token.startswith(SESSION_PREFIX) else ""


def key_credential(given: str) -> str:
    """The credential of an API key; empty if it is malformed."""
    return given if given.startswith(KEY_PREFIX) else ""


def may_be_credential(credential: str) -> bool:
    """Whether a credential has the form of a key or a session."""
    return credential.startswith((KEY_PREFIX, _SESSION_DOMAIN + SESSION_PREFIX)) and credential.isascii()


def hash_secret(secret: str) -> bytes:
    # Random secrets are too long to be guessed, so they need no salt and no slow hash.
    return hashlib.sha256(secret.encode()).digest()


async def read_keys(connection: Reader) -> dict[bytes, Principal]:
    """All valid keys and sessions, by hash."""
    keys = _by_hash(await connection.fetch(f"select {_COLUMNS} from api_keys where {_VALID}"))  # noqa: S608 - constants
    sessions = await connection.fetch(f"select {_SESSION_COLUMNS} from {_SESSIONS}")  # noqa: S608 - constants
    return keys | _by_hash(sessions, are_sessions=True)


async def find_keys(connection: Reader, hashes: Collection[bytes]) -> dict[bytes, Principal]:
    """The valid ones among these keys and sessions, by hash."""
    query = f"select {_COLUMNS} from api_keys where hash = any($1::bytea[]) and {_VALID}"  # noqa: S608 - constants
    keys = _by_hash(await connection.fetch(query, list(hashes)))
    if len(keys) == len(hashes):
        return keys
    query = f"select {_SESSION_COLUMNS} from {_SESSIONS} and s.hash = any($1::bytea[])"  # noqa: S608 - constants
    return keys | _by_hash(await connection.fetch(query, list(hashes)), are_sessions=True)


async def count_keys(connection: Reader) -> tuple[int, int, int, float]:
    """Counts that differ after any change: valid keys, changes of all keys, valid sessions, start of the newest."""
    (row,) = await connection.fetch(
        f"select count(*) filter (where {_VALID}) as valid, count(*) + sum(changed) as changes from api_keys"  # noqa: S608
    )
    (sessions,) = await connection.fetch(
        f"select count(*) as valid, extract(epoch from max(s.created_at))::float8 as newest from {_SESSIONS}"  # noqa: S608
    )
    return row["valid"], int(row["changes"] or 0), sessions["valid"], sessions["newest"] or 0.0


def _by_hash(rows: Iterable[Any], *, are_sessions: bool = False) -> dict[bytes, Principal]:
    return {
        row["hash"]: Principal(
            str(row["id"]),
            row["name"],
            row["role"],
            KeyLimits(tuple(row["models"]), row["rpm"], row["tpm"], row["tokens_per_day"], row["parallel"]),
            row["expires_in_s"],
            f"session:{row['hash'][:8].hex()}" if are_sessions else "",
        )
        for row in rows
    }
