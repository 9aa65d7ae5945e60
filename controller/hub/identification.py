"""Finds the workers of credentials. Agents that connect at the same time are found by one read."""

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass
from typing import Final

from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Database
from controller.store.workers import sessions
from controller.store.workers.sessions import Identity

LIMIT_S: Final = 20.0
_AT_ONCE: Final = 512


@dataclass(eq=False, slots=True)
class _Unknown:
    digest: bytes
    asked: bool = False
    identity: Identity | None = None


class Identification:
    """Identifies agents with one of the database's connections, so that strangers cannot use up the others."""

    def __init__(self, database: Database, keys: SecretKeys = NO_KEYS) -> None:
        self._database = database
        self._keys = keys
        self._waiting: deque[_Unknown] = deque()
        self._turn = asyncio.Lock()

    async def identify(self, credential: str) -> Identity | None:
        """The worker of the credential, deleted or not; None for an unknown credential."""
        one = _Unknown(hashlib.sha256(credential.encode("utf-8", "surrogateescape")).digest())
        self._waiting.append(one)
        try:
            async with asyncio.timeout(LIMIT_S), self._turn:
                while not one.asked:
                    await self._ask_some()
        finally:
            if not one.asked and one in self._waiting:
                self._waiting.remove(one)
        return one.identity

    async def _ask_some(self) -> None:
        """Those that fail wait again: each has its own time."""
        some = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
        try:
            async with self._database.connection() as connection:
                found = await sessions.find_by_credentials(connection, {one.digest for one in some}, self._keys)
        except BaseException:
            self._waiting.extendleft(reversed(some))
            raise
        for one in some:
            one.identity, one.asked = found.get(one.digest), True
