"""Replaces agents' old credentials over their connections.

The hash is stored before the credential is sent, and the old credential stays valid until the agent has connected with
the new one. So the agent always knows a valid credential, whichever message is lost and whichever side crashes.

The secret of its proxy changes too: the agent accepts the new secret at once, and gateways use it once the agent has
connected with the new credential. It accepts the old secret for a day, because a gateway may not know the new one yet.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from controller.hub.session import Session
from controller.store.access.key_reads import hash_secret
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Database
from controller.store.workers.credentials import new_proxy_secret, read_due, write_next
from schemas.wire import NewCredential, new_credential

log = structlog.get_logger(__name__)

POLL_S: Final = 60.0
AT_ONCE: Final = 20  # of one poll, so that not all agents of a cluster reconnect in the same minute
_LIMIT_S: Final = 10.0


class CredentialRotation:
    """Replaces credentials that are older than `older_than_s`."""

    def __init__(
        self,
        database: Database,
        sessions: Mapping[str, Session],
        older_than_s: float,
        keys: SecretKeys = NO_KEYS,
    ) -> None:
        self._keys = keys
        self._database = database
        self._sessions = sessions
        self._older_than_s = older_than_s

    async def rotate_due(self) -> None:
        """Hands new credentials to some agents with old ones."""
        able = [worker for worker, session in self._sessions.items() if _can_rotate(session)]
        if not able:
            return
        async with asyncio.timeout(_LIMIT_S), self._database.connection() as connection:
            due = await read_due(connection, able, self._older_than_s, AT_ONCE)
        for worker in due:
            session = self._sessions.get(worker)
            if session is not None and _can_rotate(session):
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


def _can_rotate(session: Session) -> bool:
    return session.protocol >= NewCredential.since and not session.credential_sent and session.held_until is None
