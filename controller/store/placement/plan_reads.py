"""What dry runs read beside the inventory: numbers of placed and of pending instances, known needs, its horizon."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from controller.domain.need_json import need_from_json
from controller.domain.placement import Need
from controller.store.core.database import Reader
from controller.store.placement.pending import PLACEABLE

_QUEUED: Final = f"""
    select count(*)
      from instances i
      join deployments d on d.uid = i.deployment_uid
      join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
     where i.phase in ('pending', 'analyzing') and (i.not_before is null or i.not_before <= clock_timestamp())
       and {PLACEABLE}"""  # noqa: S608 - a constant, no input


async def placed_counts(connection: Reader, uids: Iterable[str]) -> dict[str, Counter[int]]:
    """The number of each deployment's instances that hold claims and are not stopping, by revision."""
    rows = await connection.fetch(
        """select i.deployment_uid, i.revision, count(*) as n from instances i
            where i.deployment_uid = any($1::uuid[]) and i.phase not in ('stopping', 'replaced')
              and exists (select 1 from claims c where c.instance_id = i.id)
            group by i.deployment_uid, i.revision""",
        list(uids),
    )
    found: dict[str, Counter[int]] = {}
    for row in rows:
        found.setdefault(str(row["deployment_uid"]), Counter())[row["revision"]] = row["n"]
    return found


async def known_needs(connection: Reader, input_hashes: Iterable[str]) -> dict[str, Need]:
    """Needs by input hash, from earlier analyses."""
    rows = await connection.fetch(
        """select distinct on (input_hash) input_hash, need from revisions
            where input_hash = any($1) and need is not null order by input_hash, created_at desc""",
        list(input_hashes),
    )
    return {row["input_hash"]: need_from_json(row["need"]) for row in rows}


async def newest_revisions(connection: Reader, uids: Sequence[str]) -> list[tuple[str, int]]:
    """The uid and the newest revision of each of these deployments."""
    rows = await connection.fetch("select uid, revision from deployments where uid = any($1::uuid[])", uids)
    return [(str(row["uid"]), row["revision"]) for row in rows]


class History(NamedTuple):
    """What a failover or a restore of the database changes: what was read before may never have been."""

    timeline: int | None  # of PostgreSQL; None: the server does not tell it
    term: int  # of the lease


async def read_horizon(connection: Reader) -> int:
    """The oldest transaction that this snapshot may not see as finished. It only rises, but for a restored database."""
    (row,) = await connection.fetch("select pg_snapshot_xmin(pg_current_snapshot())::text as horizon")
    return int(row["horizon"])


async def read_history(connection: Reader) -> History:
    """The history of the database that this snapshot is of."""
    (row,) = await connection.fetch("select database_timeline() as timeline, term from lease where id = 1")
    return History(row["timeline"], row["term"])


async def count_queued(connection: Reader) -> int:
    """How many instances `read_pending` would read without a limit."""
    return int((await connection.fetch(_QUEUED))[0]["count"])
