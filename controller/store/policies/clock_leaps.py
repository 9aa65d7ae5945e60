"""Leaps of the database's clock, as leaders saw them. A later leader judges by them as well."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from controller.domain.utilization import ClockLeaps

MOST: Final = 200  # are kept, the newest
_READ: Final = "select extract(epoch from seen_at)::float8 as at, back, leapt_s from clock_leaps order by id"
_ADD: Final = """
    insert into clock_leaps (seen_at, back, leapt_s)
    select to_timestamp(at), back, leapt_s
      from unnest($1::float8[], $2::boolean[], $3::float8[]) as x (at, back, leapt_s)"""
_TRIM: Final = "delete from clock_leaps where id <= (select max(id) from clock_leaps) - $1"


class Leap(NamedTuple):
    """One leap. `at`: what the clock showed just after it. `leapt_s`: seconds that did not pass, or that come twice."""

    at: float
    back: bool
    leapt_s: float


async def read_leaps(connection: Any) -> ClockLeaps:
    """All that are kept, oldest first."""
    leaps = [Leap(row["at"], row["back"], row["leapt_s"]) for row in await connection.fetch(_READ)]
    return ClockLeaps(
        forward=tuple((leap.at, leap.leapt_s) for leap in leaps if not leap.back),
        back=tuple((leap.at, leap.at + leap.leapt_s) for leap in leaps if leap.back),
    )


async def add_leaps(connection: Any, leaps: Sequence[Leap]) -> None:
    """Keeps these, and no more than `MOST` in all."""
    await connection.execute(
        _ADD, [leap.at for leap in leaps], [leap.back for leap in leaps], [leap.leapt_s for leap in leaps]
    )
    await connection.execute(_TRIM, MOST)
