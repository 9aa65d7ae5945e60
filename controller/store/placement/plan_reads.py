"""What planning reads beside the inventory: how many instances are placed, and needs that are known."""

from collections.abc import Iterable

from controller.domain.need_json import need_from_json
from controller.domain.placement import Need
from controller.store.views.paging import Reader


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
