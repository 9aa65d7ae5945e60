"""A ledger that lost commits, after a restore or a failover: agents report terms and sessions that it does not have.

An agent obeys no lower term than the highest that it has received. So the lease's term is raised above that before the
hello is accepted, which ends the present leader's term. Then all agents reconnect, so that the next leader knows what
runs. An agent is believed if it proves that it received a term, see `controller.decide.lost_history`.
"""

import asyncio
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

import structlog

from controller.decide.lost_history import ReportedTerm, is_proven, term_to_pass
from controller.domain.events import NewEvent
from controller.hub.session import Session
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.lease import go_above
from controller.store.core.database import Database
from controller.store.core.events import write_events
from controller.store.workers.lost_history import mark_above, read_cut, read_numbers
from controller.store.workers.sessions import Identity
from schemas.wire import Hello

log = structlog.get_logger(__name__)

LIMIT_S: Final = 20.0
RETRY_S: Final = 1.0
CUT: Final = "the database lost commits that agents have seen; connect again"


def is_ahead(identity: Identity, hello: Hello) -> bool:
    """Whether the agent reports a later term or session than the ledger had when the agent was identified."""
    return hello.highest_term > identity.term or hello.highest_session > identity.session


def proven_by(identity: Identity, hello: Hello) -> ReportedTerm | None:
    """The term and session that the agent proves to have received; None without a valid proof."""
    key = identity.proof_key
    if hello.told is None or key is None:
        return None
    received = ReportedTerm(hello.told.term, hello.told.session)
    return received if is_proven(key, identity.id, received, hello.told.proof) else None


async def raise_term(database: Database, identity: Identity, hello: Hello) -> None:
    """Raises the lease's term above the agent's, if the ledger lost that term and the agent proves it."""
    async with asyncio.timeout(LIMIT_S), database.transaction() as connection:
        ledger = await read_numbers(connection, identity.id)
        if ledger is None:
            return
        proven = proven_by(identity, hello)
        # Where proofs cannot be read, agents are believed like agents that never had one.
        if proven is None and not ledger.unproven and identity.proof_key is not None:
            return
        agent = proven or ReportedTerm(hello.highest_term, hello.highest_session)
        passed = term_to_pass(ReportedTerm(ledger.term, ledger.session), agent, None if proven else ledger.last_s)
        term = None if passed is None else await go_above(connection, passed)
        if term is None:
            return
        await mark_above(connection, identity.id)
        message = (
            f"the database lost commits: the agent of {identity.name} has seen term {agent.term} and session "
            f"{agent.session}, the ledger had {ledger.term} and {ledger.session}; the next leader goes above them"
        )
        evidence = {
            "agent": {"term": agent.term, "session": agent.session},
            "ledger": {"term": ledger.term, "session": ledger.session},
            "term": term,
        }
        await write_events(connection, [NewEvent("history_lost", message, (f"worker:{identity.id}",), evidence)])
    log.warning("the database lost commits that an agent has seen", worker=identity.name, **evidence)


class LostHistory:
    """Ends connections from before a loss of commits: the ledger may not know their agents' processes."""

    def __init__(self, database: Database, clock: Clock, sessions: Callable[[], Collection[Session]]) -> None:
        self._database = database
        self._clock = clock
        self._sessions = sessions
        self._woken = asyncio.Event()
        self._known: datetime | None = None

    def wake(self) -> None:
        """A loss may have been recorded."""
        self._woken.set()

    async def run(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                async with asyncio.timeout(LIMIT_S), self._database.connection() as connection:
                    cut_at = await read_cut(connection)
            except DATABASE_ERRORS as error:
                log.warning("loss of commits not read", error=str(error) or type(error).__name__, retry_s=RETRY_S)
                self._woken.set()
                await self._clock.sleep(RETRY_S)
                continue
            if cut_at is not None and cut_at != self._known:
                self._known = cut_at
                self._end_older(cut_at)

    def _end_older(self, cut_at: datetime) -> None:
        for session in list(self._sessions()):
            if session.since < cut_at:
                session.cut(CUT, ours=True)
