"""Replaces agents' credentials by new ones, over their connections, once they are old.

The hash is stored before the credential is sent, and the present one stays valid until the agent has connected with the
next. So whatever is lost on the way, and whichever side crashes, one of both is valid that the agent knows.

The secret of its proxy changes with it: the agent accepts the next one from its message on, and gateways use it once
the agent has connected with the new credential. It accepts the one before for a day: some gateway may not know it yet.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from controller.hub.session import Session
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.store.access.key_reads import hash_secret
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Database
from controller.store.workers.credentials import new_proxy_secret, read_due, write_next
from schemas.wire import NewCredential, new_credential

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 60.0
AT_ONCE: Final = 20  # of one look, so that not all agents of a cluster connect again in the same minute
_LIMIT_S: Final = 10.0


class CredentialRotation:
    """Replaces credentials that are older than `older_than_s`, from time to time."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        sessions: Mapping[str, Session],
        older_than_s: float,
        look_every_s: float = LOOK_EVERY_S,
        keys: SecretKeys = NO_KEYS,
    ) -> None:
        self._keys = keys
        self._database = database
        self._clock = clock
        self._sessions = sessions
        self._older_than_s = older_than_s
        self._look_every_s = min(look_every_s, older_than_s)

    async def run(self) -> None:
        """Serves until cancelled."""
        while True:
            await self._clock.sleep(self._look_every_s)
            try:
                await self.look()
            except DATABASE_ERRORS as error:
                log.warning("credentials not looked at", error=str(error) or type(error).__name__)

    async def look(self) -> None:
        """Hands new credentials to some agents whose own are old."""
        able = [worker for worker, session in self._sessions.items() if _takes_one(session)]
        if not able:
            return
        async with asyncio.timeout(_LIMIT_S), self._database.connection() as connection:
            due = await read_due(connection, able, self._older_than_s, AT_ONCE)
        for worker in due:
            session = self._sessions.get(worker)
            if session is not None and _takes_one(session):
                await self._hand_over(session)

    async def _hand_over(self, session: Session) -> None:
        credential = new_credential()
        proxy_secret = new_proxy_secret() if session.takes_proxy_secrets else ""
        async with asyncio.timeout(_LIMIT_S), self._database.transaction() as connection:
            stored = await write_next(
                connection, session.worker_id, session.number, hash_secret(credential), proxy_secret or None, self._keys
            )
        if stored and session.send(NewCredential(credential=credential, proxy_secret=proxy_secret)):
            session.credential_sent = True
            log.info("credential handed over", worker=session.name, session=session.number)


def _takes_one(session: Session) -> bool:
    """An agent that was sent one connects again with it; one that is not believed gets none."""
    return session.protocol >= NewCredential.since and not session.credential_sent and session.held_until is None
