"""Used and wasted GPU seconds in plain SQL, minute by minute: slow, and what the idle report is held to."""

from datetime import datetime
from typing import Any

from controller.store.core.database import Reader
from controller.store.telemetry.idle_report import SPANS

_SUMS = f"""
    select s.deployment_uid::text as uid, sum(s.share * m.seconds) as known_s,
           sum(s.share * m.seconds * m.mean / 100) as used_s,
           coalesce(sum(s.share * m.seconds) filter (where m.max < $3), 0) as wasted_s
      from ({SPANS}) s
     cross join lateral (
           select least(covered_s, extract(epoch from
                        least(s.ended, minute + interval '1 min') - greatest(s.began, minute))::float8) as seconds,
                  mean, max
             from sample_minutes
            where device = s.device and instance_id = case when s.exclusive then '' else s.instance_id end
              and minute > s.began - interval '1 min' and minute < s.ended) m
     group by 1"""  # noqa: S608 - constants


async def plain_sums(connection: Reader, since: datetime, until: datetime, minimum: int) -> dict[str, tuple[Any, ...]]:
    """Known, used and wasted GPU seconds by deployment, where any are known."""
    rows = await connection.fetch(_SUMS, since, until, minimum)
    return {row["uid"]: (row["known_s"], row["used_s"], row["wasted_s"]) for row in rows}
