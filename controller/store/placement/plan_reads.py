"""What planning asks of the rows beside the inventory: who holds claims already, and needs that are known already."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from controller.domain.need_json import need_from_json
from controller.domain.placement import Ask, Need
from controller.domain.restarts import RestartSettings
from controller.engines.registry import engine_for
from controller.scheduling.admission.admission import PendingInstance
from controller.scheduling.estimate import asks_for
from controller.store.placement.pending import (
    PendingRow,
    RevisionKey,
    read_pending,
    read_planned_copies,
    read_revisions,
)
from controller.store.views.paging import Reader

_MAX_QUEUED: Final = 1_000  # in a cluster where more wait, little that is planned will fit


@dataclass(frozen=True, slots=True)
class Queue:
    """Who waits already, in order, and for whom room is kept before them."""

    waiting: tuple[PendingInstance, ...] = ()
    ahead: tuple[Ask, ...] = ()


async def placed_counts(connection: Reader, uids: Iterable[str]) -> dict[str, int]:
    """How many instances of these deployments hold claims and are not on their way out."""
    rows = await connection.fetch(
        """select i.deployment_uid, count(*) as n from instances i
            where i.deployment_uid = any($1::uuid[]) and i.phase not in ('stopping', 'replaced')
              and exists (select 1 from claims c where c.instance_id = i.id)
            group by i.deployment_uid""",
        list(uids),
    )
    return {str(row["deployment_uid"]): row["n"] for row in rows}


async def known_needs(connection: Reader, input_hashes: Iterable[str]) -> dict[str, Need]:
    """The needs that an analysis of equal input has found."""
    rows = await connection.fetch(
        """select distinct on (input_hash) input_hash, need from revisions
            where input_hash = any($1) and need is not null order by input_hash, created_at desc""",
        list(input_hashes),
    )
    return {row["input_hash"]: need_from_json(row["need"]) for row in rows}


async def read_queue(connection: Reader, *, without: Collection[str] = ()) -> Queue:
    """Who is served before what is planned, but for the deployments `without` (uids), which are planned anew."""
    failures = RestartSettings().failures_per_worker
    waiting = (await read_pending(connection, _MAX_QUEUED, failures_per_worker=failures)).instances
    ahead = await read_planned_copies(connection)
    asks = await _asks_of(connection, [*waiting, *ahead])

    known = [
        (one, ask)
        for one in (*ahead, *waiting)
        if (ask := asks.get((one.deployment_uid, one.revision))) is not None and one.deployment_uid not in without
    ]
    return Queue(
        waiting=tuple(one.pending_by(ask) for one, ask in known if one.destination is None),
        ahead=tuple(one.ask_by(ask) for one, ask in known if one.destination is not None),
    )


async def _asks_of(connection: Reader, some: Iterable[PendingRow]) -> dict[RevisionKey, Ask]:
    """By revision what each instance asks; those that this version cannot run ask nothing."""
    found: dict[RevisionKey, Ask] = {}
    revisions = await read_revisions(connection, sorted({(one.deployment_uid, one.revision) for one in some}))
    for key, row in revisions.items():
        with suppress(ValueError):
            spec, need = row.parse()
            found[key] = asks_for(spec, need, engine_for(spec), instance="", deployment_uid=key[0])
    return found
