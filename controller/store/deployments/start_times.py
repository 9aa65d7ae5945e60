"""Time that does not count as part of a start: nothing led, or nothing ran at all."""

from typing import Any, Final

# How long ago the last leader was at work for certain. It audits every so often, and may have led on for as long again.
_ABSENT: Final = "select extract(epoch from clock_timestamp() - max(at))::float8 - 2 * $1::float8 from audit_results"
_LEAVE_OUT: Final = """
    update instances i
       set start_phase_since = least(clock_timestamp(),
                                     coalesce(i.start_phase_since, i.phase_since) + make_interval(secs => $1))
      from (select id from instances where phase in ('analyzing', 'pending', 'scheduled', 'starting')
             order by id for no key update) starting
     where i.id = starting.id"""


async def absent_s(connection: Any, audit_every_s: float) -> float:
    """Seconds for which no controller has led, at the least; 0: unknown, or there was one all the time.

    To be called at the begin of a term, before its first audit.
    """
    found: float | None = await connection.fetchval(_ABSENT, audit_every_s)
    return max(found or 0.0, 0.0)


async def leave_out(connection: Any, seconds: float) -> None:
    """Takes these last seconds out of the phase that each start is in. In an open, guarded transaction."""
    await connection.execute(_LEAVE_OUT, seconds)
