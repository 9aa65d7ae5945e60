"""What planning asks of the rows beside the inventory: who holds claims or waits already, and needs that are known."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from gpuward.controller.domain.need_json import need_from_json
from gpuward.controller.domain.placement import Need
from gpuward.controller.store.views.paging import Reader
from gpuward.controller.store.waiting import WaitingInstance, read_revisions, read_waiting
from gpuward.schemas.manifest import DeploymentSpec

MAX_QUEUE: Final = 1000


@dataclass(frozen=True, slots=True)
class Queued:
    """An instance that waits for a place already."""

    waiting: WaitingInstance
    spec: DeploymentSpec
    need: Need


async def read_queue(connection: Reader, *, least_priority: int, without: Collection[str] = ()) -> list[Queued]:
    """Who waits with at least that priority, in the order in which they are served; at most `MAX_QUEUE`.

    Left out are those of the deployments `without` (uids), copies of instances that move, since their place is chosen
    already, and those whose spec this version does not understand.
    """
    waiting, _ = await read_waiting(connection, MAX_QUEUE)
    waiting = [
        one
        for one in waiting
        if one.priority >= least_priority and one.destination is None and one.deployment_uid not in without
    ]
    rows = await read_revisions(connection, sorted({(one.deployment_uid, one.revision) for one in waiting}))
    revisions: dict[tuple[str, int], tuple[DeploymentSpec, Need]] = {}
    for key, row in rows.items():
        with suppress(ValueError):
            revisions[key] = row.parse()
    found = ((one, revisions.get((one.deployment_uid, one.revision))) for one in waiting)
    return [Queued(one, *revision) for one, revision in found if revision is not None]


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
