"""The past of instances, by claims and minutes, to replay a policy over.

Weeks of many GPUs are millions of minutes. They come as columns, some 16 bytes per minute, for a day and some instances
at a time.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from controller.domain.history import MINUTE_S, Minutes, PastClaim, Track
from controller.store.core.database import Reader
from controller.store.telemetry.idle_report import PLAN_BY_NUMBER, SPANS

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
# The columns of each track, in one arbitrary order.
_MINUTES: Final = """
    select device, instance_id, string_agg(timestamptz_send(minute), '') as minute,
           string_agg(float4send(max), '') as high, string_agg(float4send(covered_s), '') as covered
      from sample_minutes
     where device = any($1) and instance_id = any($2) and minute >= $3 and minute < $4
     group by device, instance_id"""
_PG_EPOCH_S: Final = datetime(2000, 1, 1, tzinfo=UTC).timestamp()


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
) -> dict[tuple[str, Track], Minutes]:
    """The minutes of tracks, each with the instance that it belongs to, where there are any.

    Args:
        connection: in a transaction of its own.
        tracks: by instance.
        begin: of the first minute, inclusive.
        end: of the last one's beginning, exclusive.
    """
    await connection.fetch(PLAN_BY_NUMBER)
    devices = sorted({track.device for _, track in tracks})
    owners = sorted({instance if track.own else "" for instance, track in tracks})
    columns = {}
    for row in await connection.fetch(_MINUTES, devices, owners, begin, end):
        columns[row["device"], row["instance_id"]] = _minutes(row["minute"], row["high"], row["covered"])
    held = {one: (one[1].device, one[0] if one[1].own else "") for one in tracks}
    return {one: columns[key] for one, key in held.items() if key in columns}


def _minutes(minute: bytes, high: bytes, covered: bytes) -> Minutes:
    at = np.frombuffer(minute, ">i8") / 1e6 + (_PG_EPOCH_S + MINUTE_S)
    order = np.argsort(at, kind="stable")
    high_values, covered_values = (np.frombuffer(column, ">f4").astype(np.float32)[order] for column in (high, covered))
    return Minutes(at[order], high_values, covered_values)
