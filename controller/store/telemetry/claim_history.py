"""The past of instances, by claims and minutes, to replay a policy over.

Weeks of many GPUs are millions of minutes. They come as columns, some 16 bytes per minute, for a day and some instances
at a time.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from controller.domain.history import PastClaim, Track
from controller.store.core.database import Reader
from controller.store.telemetry.idle_report import SPANS
from controller.store.telemetry.minute_columns import MinutesRead, read_columns

_AT_ONCE: Final = 256
_EPOCH: Final = "extract(epoch from {0})::float8"
_INSTANCES: Final = f"""
    select distinct instance_id, deployment_uid from ({SPANS}) s
     where running_since is not null and instance_id > $3 order by instance_id limit {_AT_ONCE}"""  # noqa: S608 - constants
_CLAIMS: Final = f"""
    select s.instance_id, s.device, coalesce(w.name, '') as worker,
           coalesce(g.model, '') as model, s.epoch, s.exclusive, s.share,
           {_EPOCH.format("s.began")} as began, {_EPOCH.format("s.ended")} as ended,
           {_EPOCH.format("s.running_since")} as running
      from ({SPANS}) s
      left join workers w on w.id = s.worker_id
      left join devices g on g.uuid = s.device
     where s.instance_id = any($3)"""  # noqa: S608 - as above


@dataclass(frozen=True, slots=True)
class InstancePast:
    """One instance and its claims."""

    deployment_uid: str
    instance_id: str
    claims: list[PastClaim]


async def read_pasts(
    connection: Reader, since: datetime, until: datetime, after: str = ""
) -> tuple[list[InstancePast], str | None]:
    """Some instances that ran and held a GPU between `since` and `until`, and the next call's `after` (None: end).

    Args:
        connection: in one REPEATABLE READ transaction; each call may have its own, since the past does not change.
        since: claims are cut to begin here.
        until: claims are cut to end here.
        after: begin after this instance.
    """
    rows = await connection.fetch(_INSTANCES, since, until, after)
    claims: dict[str, list[PastClaim]] = defaultdict(list)
    for row in await connection.fetch(_CLAIMS, since, until, [row["instance_id"] for row in rows]):
        claims[row["instance_id"]].append(
            PastClaim(
                track=Track(row["device"], own=not row["exclusive"]),
                worker=row["worker"],
                model=row["model"],
                epoch=row["epoch"],
                share=row["share"] or 0.0,
                began=row["began"],
                ended=row["ended"],
                running_since=row["running"],
            )
        )
    found = [InstancePast(str(row["deployment_uid"]), row["instance_id"], claims[row["instance_id"]]) for row in rows]
    return found, rows[-1]["instance_id"] if len(rows) == _AT_ONCE else None


async def read_minutes(
    connection: Reader, tracks: Collection[tuple[str, Track]], begin: datetime, end: datetime
) -> dict[tuple[str, Track], MinutesRead]:
    """The minutes of tracks, each with the instance that it belongs to, where there are any.

    Args:
        connection: in a transaction of its own.
        tracks: by instance.
        begin: of the first minute, inclusive.
        end: of the last one's beginning, exclusive.
    """
    held = {one: (one[1].device, one[0] if one[1].own else "") for one in tracks}
    found = await read_columns(connection, set(held.values()), begin, end)
    return {one: found[key] for one, key in held.items() if key in found}
