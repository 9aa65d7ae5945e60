"""Time that does not count as part of a start: nothing led, or nothing ran at all."""

from typing import Any, Final

# How long ago the last leader certainly led. After an audit it may have led for as long as two intervals of audits.
_ABSENT: Final = "select extract(epoch from clock_timestamp() - max(at))::float8 - 2 * $1::float8 from audit_results"
_LEAVE_OUT: Final = """
    update instances i
       set start_phase_since = least(clock_timestamp(),
                                     coalesce(i.start_phase_since, i.phase_since) + make_interval(secs => $1))
      from (select id from instances where phase in ('analyzing', 'pending', 'scheduled', 'starting')
             order by id for no key update) starting
     where i.id = starting.id"""


async def absent_s(connection: Any, audit_every_s: float) -> float:
    """Seconds for which certainly no controller has led; 0 if unknown. Call it before a term's first audit."""
    seconds: float | None = await connection.fetchval(_ABSENT, audit_every_s)
    return max(seconds or 0.0, 0.0)


async def leave_out(connection: Any, seconds: float) -> None:
    """Subtracts these last seconds from the phase that each start is in. In an open, guarded transaction."""
    await connection.execute(_LEAVE_OUT, seconds)
