"""What a gateway tells the leader: that it is there, what each model has here, and which models shall wake."""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from controller.domain.queue_places import PlacesAsk, PlacesGrant, part_of_length
from controller.domain.rollouts import RevisionCount
from controller.domain.scaling import GatewayLoad
from controller.live.proxy_keys import NO_PROXY_KEYS, ProxyKeys
from controller.store.access.proxy_secrets import tell_proxy_keys
from controller.store.core.database import Database
from controller.store.core.notify import PLACES
from controller.store.deployments.outcomes import report_outcomes
from controller.store.scaling import gateways
from controller.store.scaling.gateways import WAKE_S
from controller.store.scaling.queue_places import lease_queue_places

__all__ = [
    "PLACES",
    "WAKE_S",
    "DemandReports",
    "GatewayLoad",
    "PlacesAsk",
    "PlacesGrant",
    "RevisionCount",
    "Told",
    "part_of_length",
]


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to a report."""

    rank: int  # of this gateway among all that report, from 0
    gateways: int  # how many these are, at least 1
    anew: bool  # the database knew nothing of this gateway: what it told before is lost


class DemandReports:
    """One gateway process's gateways.

    Args:
        database: to write to, on a connection of its own pool.
        name: of the gateway; a process that starts again under it takes the place of a dead one.
        proxy_keys: with which it opens the secrets of agents' proxies.
    """

    def __init__(self, database: Database, name: str, proxy_keys: ProxyKeys = NO_PROXY_KEYS) -> None:
        self._proxy_keys = proxy_keys
        self._told_keys: tuple[str, ...] | None = None
        self._database = database
        self._id = uuid.uuid4()
        self._name = name
        self._beat = 0

    async def report(self, loads: Mapping[str, GatewayLoad], counts: Sequence[RevisionCount] = ()) -> Told:
        """Tells that it is there, and what has changed: demand by deployment, and counts of revisions in rollouts."""
        self._beat += 1
        told = {uuid.UUID(uid): load for uid, load in loads.items()}
        await self._proxy_keys.refresh()
        key_ids = self._proxy_keys.keys.ids
        async with self._database.connection() as connection:
            new_keys = key_ids != self._told_keys
            # At once: between both it would count as a gateway without a key.
            async with connection.transaction() if new_keys else nullcontext():
                anew = await gateways.report_demand(connection, self._id, self._name, self._beat, told)
                if anew or new_keys:
                    await tell_proxy_keys(connection, self._id, list(key_ids))
            self._told_keys = key_ids
            if counts:
                await report_outcomes(connection, self._id, counts)
            rank, count = await gateways.rank_of(connection, self._id)
        return Told(rank, count, anew)

    async def lease_places(self, asks: Sequence[PlacesAsk], in_touch_s: float) -> list[PlacesGrant]:
        """Asks for places in queues, and returns those that are not needed; see `lease_queue_places`."""
        async with self._database.transaction() as connection:
            return await lease_queue_places(connection, self._id, asks, in_touch_s)

    async def wake(self, uid: str, request_id: str) -> None:
        """Asks for a deployment to wake; it ends by itself `WAKE_S` after the last call."""
        async with self._database.connection() as connection:
            await gateways.ask_wake(connection, self._id, uuid.UUID(uid), request_id)

    async def withdraw(self, uid: str) -> None:
        """No request waits for it here any more."""
        async with self._database.connection() as connection:
            await gateways.withdraw_wake(connection, self._id, uuid.UUID(uid))

    async def leave(self) -> None:
        async with self._database.connection() as connection:
            await gateways.leave(connection, self._id)
        self._told_keys = None
