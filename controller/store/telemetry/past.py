"""The past of instances, claim by claim and minute by minute, for a policy to be replayed over it."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from controller.decide.policies.replay import MINUTE_S, Minute, PastClaim, Track
from controller.store.telemetry.idle_report import SPANS
from controller.store.views.paging import Reader

_AT_ONCE: Final = 16
_EPOCH: Final = "extract(epoch from {0})::float8"
_INSTANCES: Final = f"""
    select distinct instance_id, deployment_uid from ({SPANS}) s
     where running_since is not null and instance_id > $3 order by instance_id limit {_AT_ONCE}"""  # noqa: S608 - constants
_CLAIMS: Final = f"""
    select s.instance_id, s.device, w.name as worker, s.epoch, s.exclusive, s.share,
           {_EPOCH.format("s.began")} as began, {_EPOCH.format("s.ended")} as ended,
           {_EPOCH.format("s.running_since")} as running
      from ({SPANS}) s left join workers w on w.id = s.worker_id where s.instance_id = any($3)"""  # noqa: S608 - as above
_MINUTES: Final = f"""
    select m.device, {_EPOCH.format("m.minute")} as minute, m.mean, m.max, m.covered_s
      from sample_minutes m
     where m.device = any($1) and m.instance_id = $2 and m.minute >= $3 and m.minute < $4
     order by m.minute"""  # noqa: S608 - as above


@dataclass(frozen=True, slots=True)
class Past:
    """One instance: what it claimed and what its GPUs did meanwhile."""

    deployment_uid: str
    claims: list[PastClaim]
    minutes: dict[Track, list[Minute]]


async def read_pasts(
    connection: Reader, since: datetime, until: datetime, window_s: float, after: str = ""
) -> tuple[list[Past], str | None]:
    """A few instances that ran and held a GPU between `since` and `until`, and after which to go on; None at the end.

    Args:
        connection: in one REPEATABLE READ transaction; each call may have its own, since the past does not change.
        since: claims are cut to begin here; minutes are read from `window_s` seconds before.
        until: claims are cut to end here.
        window_s: of the policy that is to be replayed.
        after: the instance after which to begin.
    """
    rows = await connection.fetch(_INSTANCES, since, until, after)
    claims: dict[str, list[PastClaim]] = defaultdict(list)
    for row in await connection.fetch(_CLAIMS, since, until, [row["instance_id"] for row in rows]):
        claims[row["instance_id"]].append(
            PastClaim(
                track=Track(row["device"], own=not row["exclusive"]),
                worker=row["worker"] or "",
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
        found.append(Past(str(row["deployment_uid"]), claims[instance], minutes))
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
