"""A gateway's reports to the leader: its presence, the demand of each model, and requests for models to wake."""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from controller.domain.queue_places import PlacesAsk, PlacesGrant, part_of_length
from controller.domain.rollouts import RevisionCount
from controller.domain.scaling import GatewayLoad
from controller.live.proxy_keys import NO_PROXY_KEYS, ProxyKeys
from controller.store.access.proxy_secrets import report_proxy_keys
from controller.store.core.database import Database
from controller.store.core.events import PLACES
from controller.store.deployments.rollouts import report_outcomes
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
    "ReportAnswer",
    "RevisionCount",
    "part_of_length",
]


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """The answer to a gateway's report."""

    rank: int  # this gateway's rank among all that report, from 0
    gateways: int  # the number of those, at least 1
    is_new: bool  # the database had no row of this gateway: its earlier reports are lost


class DemandReports:
    """Reports of one gateway process. A new process of the same `name` replaces a dead one."""

    def __init__(self, database: Database, name: str, proxy_keys: ProxyKeys = NO_PROXY_KEYS) -> None:
        self._proxy_keys = proxy_keys
        self._reported_keys: tuple[str, ...] | None = None
        self._database = database
        self._id = uuid.uuid4()
        self._name = name
        self._beat = 0

    async def report(self, loads: Mapping[str, GatewayLoad], counts: Sequence[RevisionCount] = ()) -> ReportAnswer:
        """Reports its presence, changed demand by deployment, and counts of revisions in rollouts."""
        self._beat += 1
        demand = {uuid.UUID(uid): load for uid, load in loads.items()}
        await self._proxy_keys.refresh()
        key_ids = self._proxy_keys.keys.ids
        async with self._database.connection() as connection:
            new_keys = key_ids != self._reported_keys
            # In one transaction: between both writes it would count as a gateway without a key.
            async with connection.transaction() if new_keys else nullcontext():
                is_new = await gateways.report_demand(connection, self._id, self._name, self._beat, demand)
                if is_new or new_keys:
                    await report_proxy_keys(connection, self._id, list(key_ids))
            self._reported_keys = key_ids
            if counts:
                await report_outcomes(connection, self._id, counts)
            rank, count = await gateways.rank_of(connection, self._id)
        return ReportAnswer(rank, count, is_new)

    async def lease_places(self, asks: Sequence[PlacesAsk], in_touch_s: float) -> list[PlacesGrant]:
        """Leases places in queues, and gives back those that are not needed; see `lease_queue_places`."""
        async with self._database.transaction() as connection:
            return await lease_queue_places(connection, self._id, asks, in_touch_s)

    async def wake(self, uid: str, request_id: str) -> None:
        """Requests that a deployment wakes; the request expires `WAKE_S` after the last call."""
        async with self._database.connection() as connection:
            await gateways.ask_wake(connection, self._id, uuid.UUID(uid), request_id)

    async def withdraw(self, uid: str) -> None:
        """Withdraws `wake`."""
        async with self._database.connection() as connection:
            await gateways.withdraw_wake(connection, self._id, uuid.UUID(uid))

    async def leave(self) -> None:
        async with self._database.connection() as connection:
            await gateways.leave(connection, self._id)
        self._reported_keys = None
