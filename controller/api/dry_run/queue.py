"""The admission queue of a dry run: the pending instances that are ahead of the planned ones."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from controller.api.dry_run.manifests import Successors
from controller.domain.admission import Holders, Holdings, PendingInstance, PendingRow
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

MAX_QUEUED: Final = 1_000  # with more pending, few planned instances would fit


@dataclass(frozen=True, slots=True)
class Queue:
    """Pending instances in order, asks with capacity reserved before them, and the next successors of rollouts."""

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
    """The same instances. Those that may not preempt, because their start would fail, have the reason."""
    wanted = sorted({(one.deployment_uid, one.revision) for one in waiting if one.preempt})
    revisions = await read_revisions(connection, wanted) if wanted else {}

    def spec_of(one: PendingRow) -> DeploymentSpec:
        if (row := revisions.get((one.deployment_uid, one.revision))) is None:
            raise ValueError(f"revision {one.revision} has no need yet")
        return row.parse()[0]

    return await check_starts(connection, waiting, spec_of, keys, RestartSettings())


async def read_successors(connection: Reader, holders: Holders, holdings: Holdings) -> Successors:
    """The asks of these holders' successors, by deployment."""
    held = [holding for holder in holders.staying if (holding := holdings.get(holder.instance)) is not None]
    uids = {claim.deployment_uid for holding in held for claim in holding.by_device.values()}
    keys = await newest_revisions(connection, sorted(uids))
    return {uid: ask for (uid, _), ask in (await _parsed(connection, keys)).items()}


async def asks_of(connection: Reader, rows: Iterable[PendingRow]) -> dict[RevisionKey, Ask]:
    """The ask of each revision of these instances. A revision that this version cannot run is missing."""
    return await _parsed(connection, sorted({(row.deployment_uid, row.revision) for row in rows}))


async def _parsed(connection: Reader, keys: Sequence[RevisionKey]) -> dict[RevisionKey, Ask]:
    asks: dict[RevisionKey, Ask] = {}
    revisions = await read_revisions(connection, keys)
    for key, row in revisions.items():
        with suppress(ValueError):
            spec, need = row.parse()
            asks[key] = asks_for(spec, need, engine_for(spec), instance="", deployment_uid=key[0])
    return asks
