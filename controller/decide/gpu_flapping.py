"""How long a GPU that is lost repeatedly is kept from placement. Pure.

An instance moves at once when its GPU is lost, so a bad cable, or an agent alone, could move instances without end.
After each further loss within a day, the time for which the returned GPU is not used doubles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from controller.domain.devices import GONE, MEMORY_SHRUNK, MISSING, UNSTEADY, DeviceRow, KnownDevice, reason_code

_NOT_READ: Final = frozenset({*GONE, "gpu_unreadable", "reset_required"})  # codes of agents
_IN_A_ROW: Final = timedelta(days=1)
_FIRST_S: Final = 60.0
_LONGEST_S: Final = 3600.0


def with_losses(rows: Sequence[DeviceRow], known: Mapping[str, KnownDevice]) -> list[DeviceRow]:
    """A worker's GPUs with their losses: a further loss, a return, or a return that is not stable yet.

    `rows`: the GPUs by the report alone. `known`: the stored GPUs by UUID.
    """
    read = {row.uuid for row in rows if row.health != "unknown" and reason_code(row.health_reason) not in _NOT_READ}
    return [_judged(row, known.get(row.uuid), removed=row.parent in read) for row in rows]


def hold_s(losses: int) -> float:
    """How long after its last loss a GPU is not used, in seconds. The first loss costs nothing."""
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(losses - 2, 16)) if losses > 1 else 0.0


def _judged(row: DeviceRow, device: KnownDevice | None, *, removed: bool) -> DeviceRow:
    """`removed`: its GPU was read, so if it is missing, an operator has removed this slice of it."""
    if device is None:
        return row
    before = device.row
    if before.dismissals == device.dismissed:
        row = replace(row, losses=before.losses, unsteady_until=before.unsteady_until)
    row = replace(row, lost=before.lost, dismissals=device.dismissed)
    if _is_gone(row):
        # It had not returned in between, when all readings failed or the driver gave other reasons.
        counts = not before.lost and not (removed and row.health_reason == MISSING)
        return replace(_lost(row, device.read_at) if counts else row, lost=True)
    if row.health == "ok" or row.health_reason == MEMORY_SHRUNK:
        row = replace(row, lost=False)
    if row.health != "ok" or row.unsteady_until is None or row.unsteady_until <= device.read_at:
        return row
    back = f"{row.unsteady_until:%Y-%m-%d %H:%M:%S} UTC"
    reason = f"{UNSTEADY}: it was lost {row.losses} times, each within a day; it is used again from {back} on"
    return replace(row, health="unhealthy", health_reason=reason)


def _is_gone(row: DeviceRow) -> bool:
    return reason_code(row.health_reason) in GONE


def _lost(row: DeviceRow, now: datetime) -> DeviceRow:
    in_a_row = False
    if row.unsteady_until is not None:
        last = row.unsteady_until - timedelta(seconds=hold_s(row.losses))
        in_a_row = now - last < _IN_A_ROW
    losses = row.losses + 1 if in_a_row else 1
    return replace(row, losses=losses, unsteady_until=now + timedelta(seconds=hold_s(losses)))
