"""The admission queue as a dry run sees it: the pending instances that are ahead of what is planned."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from controller.api.dry_run.manifests import Successors
from controller.domain.holdings import Holders, Holdings
from controller.domain.pending import PendingInstance, PendingRow
from controller.domain.placement import Ask
from controller.domain.restart_delays import RestartSettings
from controller.engines.registry import engine_for
from controller.leader.start_checks import check_starts
from controller.scheduling.estimate import asks_for
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Reader
from controller.store.placement.pass_reads import (
    RevisionKey,
    read_awaited,
    read_pending,
    read_planned_copies,
    read_revisions,
)
from controller.store.placement.plan_reads import newest_revisions
from schemas.manifest.deployment import DeploymentSpec

MAX_QUEUED: Final = 1_000  # where more are pending, little of what is planned will fit


@dataclass(frozen=True, slots=True)
class Queue:
    """Pending instances in order, the asks that have capacity reserved before them, and rollouts' next successors."""

    waiting: tuple[PendingInstance, ...] = ()
    reserved: tuple[Ask, ...] = ()
    awaited: tuple[PendingInstance, ...] = ()


async def read_queue(connection: Reader, *, without: Collection[str] = (), keys: SecretKeys = NO_KEYS) -> Queue:
    """The present queue, without instances and relocations of the deployments `without` (uids)."""
    failures = RestartSettings().failures_per_worker
    waiting = (await read_pending(connection, MAX_QUEUED, failures_per_worker=failures)).instances
    waiting = await checked(connection, waiting, keys)
    reserved = await read_planned_copies(connection)
    awaited = await read_awaited(connection)
    asks = await asks_of(connection, [*waiting, *reserved, *awaited])

    known = [
        (one, ask)
        for one in (*reserved, *waiting, *awaited)
        if (ask := asks.get((one.deployment_uid, one.revision))) is not None and one.deployment_uid not in without
    ]
    return Queue(
        waiting=tuple(one.pending_by(ask) for one, ask in known if one.destination is None and not one.awaited),
        reserved=tuple(one.ask_by(ask) for one, ask in known if one.destination is not None),
        awaited=tuple(one.pending_by(ask) for one, ask in known if one.awaited),
    )


async def checked(connection: Reader, waiting: Sequence[PendingRow], keys: SecretKeys) -> list[PendingRow]:
    """The same instances, with the reason at those that preempt nothing since their start would fail."""
    wanted = sorted({(one.deployment_uid, one.revision) for one in waiting if one.preempt})
    revisions = await read_revisions(connection, wanted) if wanted else {}

    def spec_of(one: PendingRow) -> DeploymentSpec:
        if (row := revisions.get((one.deployment_uid, one.revision))) is None:
            raise ValueError(f"revision {one.revision} has no need yet")
        return row.parse()[0]

    return await check_starts(connection, waiting, spec_of, keys, RestartSettings())


async def read_successors(connection: Reader, holders: Holders, holdings: Holdings) -> Successors:
    """What the successors of these holders would ask for, by deployment."""
    held = [holding for one in holders.staying if (holding := holdings.get(one.instance)) is not None]
    uids = {claim.deployment_uid for holding in held for claim in holding.by_device.values()}
    keys = await newest_revisions(connection, sorted(uids))
    return {uid: ask for (uid, _), ask in (await _parsed(connection, keys)).items()}


async def asks_of(connection: Reader, some: Iterable[PendingRow]) -> dict[RevisionKey, Ask]:
    """The asks that the instances of a revision share. A revision that this version cannot run is missing."""
    return await _parsed(connection, sorted({(one.deployment_uid, one.revision) for one in some}))


async def _parsed(connection: Reader, keys: Sequence[RevisionKey]) -> dict[RevisionKey, Ask]:
    """The ask of each revision. A revision that this version cannot run is missing."""
    found: dict[RevisionKey, Ask] = {}
    revisions = await read_revisions(connection, keys)
    for key, row in revisions.items():
        with suppress(ValueError):
            spec, need = row.parse()
            found[key] = asks_for(spec, need, engine_for(spec), instance="", deployment_uid=key[0])
    return found
