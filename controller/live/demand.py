"""What a gateway tells the leader: that it is there, what each model has here, and which models shall wake."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller.domain.rollouts import RevisionCount
from controller.domain.scaling import GatewayLoad
from controller.store.core.database import Database
from controller.store.deployments.outcomes import report_outcomes
from controller.store.scaling import reports
from controller.store.scaling.reports import WAKE_S

__all__ = ["WAKE_S", "DemandReports", "GatewayLoad", "RevisionCount", "Told"]


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to a report.

    Attributes:
        elsewhere: requests that wait at other gateways, by deployment.
        anew: the database knew nothing of this gateway: what it told before is lost.
    """

    elsewhere: Mapping[str, int]
    anew: bool


class DemandReports:
    """One gateway process's reports.

    Args:
        database: to write to, on a connection of its own pool.
        name: of the gateway; a process that starts again under it takes the place of a dead one.
    """

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._id = uuid.uuid4()
        self._name = name
        self._beat = 0

    async def report(self, loads: Mapping[str, GatewayLoad], counts: Sequence[RevisionCount] = ()) -> Told:
        """Tells that it is there, and what has changed: demand by deployment, and counts of revisions in rollouts."""
        self._beat += 1
        told = {uuid.UUID(uid): load for uid, load in loads.items()}
        async with self._database.connection() as connection:
            anew = await reports.report_demand(connection, self._id, self._name, self._beat, told)
            if counts:
                await report_outcomes(connection, self._id, counts)
            waiting = await reports.waiting_elsewhere(connection, self._id)
        return Told({str(uid): number for uid, number in waiting.items()}, anew)

    async def wake(self, uid: str, request_id: str) -> None:
        """Asks for a deployment to wake; it ends by itself `WAKE_S` after the last call."""
        async with self._database.connection() as connection:
            await reports.ask_wake(connection, self._id, uuid.UUID(uid), request_id)

    async def withdraw(self, uid: str) -> None:
        """No request waits for it here any more."""
        async with self._database.connection() as connection:
            await reports.withdraw_wake(connection, self._id, uuid.UUID(uid))

    async def leave(self) -> None:
        """It ends."""
        async with self._database.connection() as connection:
            await reports.leave(connection, self._id)
