"""The past of instances, by claims and minutes, to replay a policy over."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from controller.domain.history import MINUTE_S, Minute, PastClaim, Track
from controller.store.core.database import Reader
from controller.store.telemetry.idle_report import SPANS

_AT_ONCE: Final = 16
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
_MINUTES: Final = f"""
    select m.device, {_EPOCH.format("m.minute")} as minute, m.mean, m.max, m.covered_s
      from sample_minutes m
     where m.device = any($1) and m.instance_id = $2 and m.minute >= $3 and m.minute < $4
     order by m.minute"""  # noqa: S608 - as above


@dataclass(frozen=True, slots=True)
class InstancePast:
    """One instance: its claims, and the minutes of its GPUs."""

    deployment_uid: str
    claims: list[PastClaim]
    minutes: dict[Track, list[Minute]]


async def read_pasts(
    connection: Reader, since: datetime, until: datetime, window_s: float, after: str = ""
) -> tuple[list[InstancePast], str | None]:
    """Some instances that ran and held a GPU between `since` and `until`, and the next call's `after` (None: end).

    Args:
        connection: in one REPEATABLE READ transaction; each call may have its own, since the past does not change.
        since: claims are cut to begin here; minutes are read from `window_s` seconds before.
        until: claims are cut to end here.
        window_s: of the policy that is replayed.
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
    begin = since - timedelta(seconds=window_s)
    found = []
    for row in rows:
        instance = row["instance_id"]
        minutes = await _minutes(connection, instance, claims[instance], begin, until)
        found.append(InstancePast(str(row["deployment_uid"]), claims[instance], minutes))
    return found, rows[-1]["instance_id"] if len(rows) == _AT_ONCE else None


async def _minutes(
    connection: Reader, instance: str, claims: list[PastClaim], begin: datetime, until: datetime
) -> dict[Track, list[Minute]]:
    found: dict[Track, list[Minute]] = defaultdict(list)
    for own in {claim.track.own for claim in claims}:
        devices = sorted({claim.track.device for claim in claims if claim.track.own is own})
        for row in await connection.fetch(_MINUTES, devices, instance if own else "", begin, until):
            minute = Minute(row["minute"] + MINUTE_S, row["mean"], row["max"], row["covered_s"])
            found[Track(row["device"], own)].append(minute)
    return found
