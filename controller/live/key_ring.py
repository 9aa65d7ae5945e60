"""The credential of a request, and all valid keys and sessions in memory, which check it also without the database.

A key is given as `Authorization: Bearer`, `x-api-key` or `api-key`, and a browser's session in a cookie. Where a key is
given, only it counts, valid or not. `Authorization` of another scheme, or an empty one, is not for Gpuward: a reverse
proxy with a login of its own sends `Basic` with every request.

One task reads keys on a connection of its own: at its start, at each change, and where a count each `POLL_S` differs.
Unknown keys are queried in batches, so that a flood of wrong keys costs few queries.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import structlog

from controller.live.change_fanout import ChangeFanout
from controller.live.errors import UnknownWhileAwayError
from controller.live.same_origin import cookie_in
from controller.runtime.database import DATABASE_ERRORS, Connect
from controller.store.access.key_reads import (
    SECURE_SESSION_COOKIE,
    SESSION_COOKIE,
    Principal,
    count_keys,
    find_keys,
    hash_secret,
    key_credential,
    may_be_credential,
    read_keys,
    session_credential,
)
from controller.store.access.key_use import NOTED_EVERY_S, note_use

__all__ = ["KeyRing", "Principal", "digest_of", "key_credential", "session_credential"]

log = structlog.get_logger(__name__)

# Behind TLS the name itself vouches that no other host has set the cookie, so it counts first.
SESSION_COOKIES: Final = (SECURE_SESSION_COOKIE, SESSION_COOKIE)
ANSWER_S: Final = 1.0  # the longest wait of a request for the database
POLL_S: Final = 0.8
SPACING_S: Final = 0.05  # between two reads, so at most 20 a second
BATCH: Final = 1024
MAX_UNKNOWN: Final = 4096  # keys that wait for a query
_KEY_FIELDS: Final = ("x-api-key", "api-key")
_CONNECT_LIMIT_S: Final = 3.0
_READ_LIMIT_S: Final = 2.0
_RETRY_S: Final = 0.5
_STOP_LIMIT_S: Final = 2.0
_MAX_KEY_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class Credential:
    """A `key_credential`, or a `session_credential` for each of the session's cookies."""

    texts: tuple[str, ...] = ()  # the first valid text counts; an empty text is not valid
    by_cookie: bool = False  # a browser sends it for pages of any origin


def credential_in(values_of: Callable[[str], Sequence[str]]) -> Credential:
    """Returns a request's credential; `values_of` returns all values of a field by its name in lower case."""
    for authorization in values_of("authorization"):
        scheme, _, key = authorization.strip().partition(" ")
        if scheme.lower() == "bearer":
            return Credential((key_credential(key.strip()),))
    given = next((value for name in _KEY_FIELDS for value in values_of(name) if value), None)
    if given is not None:
        return Credential((key_credential(given),))
    tokens = session_tokens(values_of("cookie"))
    return Credential(tuple(map(session_credential, tokens)), by_cookie=True) if tokens else Credential()


def session_tokens(cookies: Sequence[str]) -> list[str]:
    """Returns the tokens of the session's cookies in these `Cookie` fields; the first valid token counts."""
    # A browser may send both cookies, of which one ended when its connection gained or lost TLS.
    header = "; ".join(cookies)
    return [token for name in SESSION_COOKIES if (token := cookie_in(header, name))]


class KeyRing:
    """Checks keys.

    Args:
        connect: opens a connection to the database that no other work uses.
        changes: wakes it at each change of kind `key`.
        ended: called with credentials (`Principal.credential`) that are no longer valid.
        away: called with whether the database is away, when that changes.
        local: keys of this process alone, by their hash. They are not stored and cannot be revoked.
    """

    def __init__(
        self,
        connect: Connect,
        changes: ChangeFanout,
        *,
        ended: Callable[[frozenset[str]], None],
        away: Callable[[bool], None] = lambda _away: None,
        local: Mapping[bytes, Principal] | None = None,
    ) -> None:
        self._connect = connect
        self._changes = changes
        self._ended = ended
        self._on_away = away
        self._local = dict(local or {})
        self._known: dict[bytes, Principal] = {}
        self._ends_at: dict[bytes, float] = {}  # when keys expire, by the loop's clock
        self._counted: tuple[float, ...] | None = None  # keys, sessions and changes at the last full read
        self._unknown: dict[bytes, asyncio.Future[bool]] = {}  # results: whether the query succeeded
        self._away = False
        self._changed = False
        self._wake = asyncio.Event()
        self._used: set[str] = set()  # ids of keys, to be noted
        self._noted_s = -math.inf
        self.task: asyncio.Task[None] | None = None  # from `start`. It ends only by a bug, which `authenticate` raises

    def start(self) -> None:
        self.task = asyncio.create_task(self._run(), name="key-ring")

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task], timeout=_STOP_LIMIT_S)

    async def authenticate(self, key: str) -> Principal | None:
        """Returns the owner of a key or `session_credential`; None if unknown or expired. Waits at most `ANSWER_S`.

        Raises:
            UnknownWhileAwayError: the key is not in memory, and the database is away.
        """
        known = self.known(key)
        if known is not None or not _may_be_key(key):
            return known
        digest = hash_secret(key)
        if not self._has_expired(digest):
            await self._query(digest)
        return None if self._has_expired(digest) else self._known.get(digest)

    async def first_owner(self, credentials: Sequence[str]) -> Principal | None:
        """The owner of the first valid credential. Raises UnknownWhileAwayError as `authenticate`."""
        unknown: UnknownWhileAwayError | None = None
        for credential in credentials:
            try:
                owner = await self.authenticate(credential)
            except UnknownWhileAwayError as error:
                unknown = error
            else:
                if owner is not None:
                    return owner
        if unknown is not None:
            raise unknown
        return None

    def known(self, key: str) -> Principal | None:
        """Returns the owner of a key that is in memory; else None."""
        return self.owner(digest_of(key))

    def owner(self, digest: bytes) -> Principal | None:
        """As `known`, of a key's `digest_of`."""
        if self.task is not None and self.task.done():
            self.task.result()  # stale keys must not be accepted
        if self._ends_at and self._has_expired(digest):
            return self._local.get(digest)
        return self._known.get(digest) or self._local.get(digest)

    def note_use(self, principal: Principal) -> None:
        """Notes the use of its key, which is written once a minute together with others."""
        if len(self._used) < MAX_UNKNOWN and principal not in self._local.values():
            self._used.add(principal.key_id)

    async def _write_use(self, connection: Any) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self._used or now_s - self._noted_s < NOTED_EVERY_S:
            return
        self._noted_s, used, self._used = now_s, self._used, set()
        async with asyncio.timeout(_READ_LIMIT_S):
            await note_use(connection, used)

    def _has_expired(self, digest: bytes) -> bool:
        ends_at = self._ends_at.get(digest)
        return ends_at is not None and asyncio.get_running_loop().time() >= ends_at

    def _note_ends(self, keys: Mapping[bytes, Principal]) -> None:
        now = asyncio.get_running_loop().time()
        for digest, principal in keys.items():
            if principal.expires_in_s is not None:
                self._ends_at[digest] = now + principal.expires_in_s
            else:
                self._ends_at.pop(digest, None)

    async def _query(self, digest: bytes) -> None:
        """Returns once a read that started after the call has put the key into memory, if it exists."""
        query = self._unknown.get(digest)
        if query is None and not self._away and len(self._unknown) < MAX_UNKNOWN:
            query = self._unknown[digest] = asyncio.get_running_loop().create_future()
            self._wake.set()
        if query is not None:
            await asyncio.wait({query}, timeout=ANSWER_S)
        if query is None or not query.done() or not query.result():
            raise UnknownWhileAwayError(
                "the database is away, and this key is not among those in memory; try again in a moment"
            )

    async def _run(self) -> None:
        with self._changes.woken_by("key", self._note_change):
            while True:
                try:
                    await self._serve()
                except DATABASE_ERRORS as error:
                    if not self._away:
                        log.warning(
                            "keys not refreshed, keeping those in memory",
                            keys=len(self._known),
                            error=str(error) or type(error).__name__,
                        )
                        self._on_away(True)
                    self._away = True
                    self._answer(tuple(self._unknown), succeeded=False)
                    self._forget_expired()
                    await asyncio.sleep(_RETRY_S)

    def _note_change(self) -> None:
        self._changed = True
        self._wake.set()

    async def _serve(self) -> None:
        """Reads on one connection until it fails; always raises."""
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            connection = await self._connect()
        try:
            self._changed = True
            while True:
                await self._refresh(connection)
                await self._write_use(connection)
                if self._unknown:
                    await self._read_unknown(connection)
                await asyncio.sleep(SPACING_S)
                await self._until_woken()
        finally:
            connection.terminate()

    async def _refresh(self, connection: Any) -> None:
        """Reads all keys if they have changed; ends those that are gone."""
        counted = await _read(count_keys(connection))
        if self._changed or counted != self._counted:
            self._changed = False
            before = self._roles()
            self._known = await _read(read_keys(connection))
            self._ends_at = {digest: at for digest, at in self._ends_at.items() if digest in self._known}
            self._note_ends(self._known)
            self._counted = counted
            self._end_gone(before)
        if self._away:
            log.info("keys are fresh again", keys=len(self._known))
            self._on_away(False)
        self._away = False

    def _forget_expired(self) -> None:
        """Ends keys that expire while the database is away."""
        before = self._roles()
        for digest in filter(self._has_expired, self._ends_at):
            self._known.pop(digest, None)
        self._end_gone(before)

    def _end_gone(self, before: set[tuple[str, str]]) -> None:
        # A changed role ends a credential too, because a stream's content depends on the role.
        gone = {credential for credential, _ in before - self._roles()}
        if gone:
            self._ended(frozenset(gone))

    def _roles(self) -> set[tuple[str, str]]:
        return {(principal.credential, principal.role) for principal in self._known.values()}

    async def _read_unknown(self, connection: Any) -> None:
        batch = tuple(islice(self._unknown, BATCH))
        keys = await _read(find_keys(connection, batch))
        self._known.update(keys)
        self._note_ends(keys)
        self._answer(batch, succeeded=True)

    def _answer(self, digests: tuple[bytes, ...], *, succeeded: bool) -> None:
        for digest in digests:
            self._unknown.pop(digest).set_result(succeeded)

    async def _until_woken(self) -> None:
        if not self._unknown:
            try:
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()
            except TimeoutError:
                return
        self._wake.clear()


def digest_of(key: str) -> bytes:
    """The hash by which a key is known; empty for text that cannot be a key."""
    return hash_secret(key) if _may_be_key(key) else b""


def _may_be_key(key: str) -> bool:
    return len(key) <= _MAX_KEY_CHARS and may_be_credential(key)


async def _read(reading: Awaitable[Any]) -> Any:
    async with asyncio.timeout(_READ_LIMIT_S):
        return await reading
