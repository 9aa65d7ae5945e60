"""As which account an instance's engine runs: what the setting says, and which uid of a range is next. Pure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

_LARGEST_ID: Final = 2**31 - 1
_FORM: Final = re.compile(r"(?:(?P<first>\d{1,10})-(?P<last>\d{1,10})|(?P<user>[^:\s]+))(?::(?P<group>[^:\s]+))?")
UNUSED_UIDS: Final = "60706-61183"  # which neither distributions nor systemd give to anything


@dataclass(frozen=True, slots=True)
class EngineUser:
    """What the setting says."""

    user: str = ""  # a name or uid; empty: `uids` are given
    group: str = ""  # a name or gid; empty: the user's own, with a range the one of the instance's uid
    uids: range = range(0)  # of which each instance gets one of its own


def parse_engine_user(text: str) -> EngineUser:
    """`USER[:GROUP]` or `FIRST-LAST[:GROUP]`. Raises ValueError if it is neither."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"must be USER[:GROUP], or a range of uids FIRST-LAST[:GROUP], got {text!r}")
    if match["user"] is not None:
        return EngineUser(user=match["user"], group=match["group"] or "")
    first, last = int(match["first"]), int(match["last"])
    if not 0 < first <= last <= _LARGEST_ID:
        raise ValueError(f"must be a range of uids from 1 on, the first of them first, got {text!r}")
    return EngineUser(group=match["group"] or "", uids=range(first, last + 1))


def next_uid(
    uids: range, instance: str, *, in_use: Collection[int], owners: Mapping[str, int], last: int | None
) -> int | None:
    """The uid for an instance; None: all are in use.

    It keeps the one that owns its folder. Else the range is used in turn, so that a uid comes back late.
    """
    own = owners.get(instance)
    if own in uids and own not in in_use:
        return own
    begin = uids.index(last) + 1 if last is not None and last in uids else 0
    turn = [uids[(begin + n) % len(uids)] for n in range(len(uids))]
    free = [uid for uid in turn if uid not in in_use]
    kept = set(owners.values())
    return next((uid for uid in free if uid not in kept), free[0] if free else None)
