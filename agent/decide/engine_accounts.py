"""The account of an instance's engine: the parsed setting, and the next uid of a range. Pure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

_LARGEST_ID: Final = 2**31 - 1
_FORM: Final = re.compile(r"(?:(?P<first>\d{1,10})-(?P<last>\d{1,10})|(?P<user>[^:\s]+))(?::(?P<group>[^:\s]+))?")
UNUSED_UIDS: Final = "60706-61183"  # neither distributions nor systemd assign these


@dataclass(frozen=True, slots=True)
class EngineUser:
    """The parsed setting."""

    user: str = ""  # a name or uid; empty if `uids` are given
    group: str = ""  # a name or gid; empty: the user's own, or with a range the gid equal to the uid
    uids: range = range(0)  # each instance gets one


def parse_engine_user(text: str) -> EngineUser:
    """Parses `USER[:GROUP]` or `FIRST-LAST[:GROUP]`. Raises ValueError."""
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
    """The uid for an instance; None if all are in use.

    An instance keeps the uid that owns its folder. Else uids are used in turn, so that each is reused late.
    """
    own = owners.get(instance)
    if own in uids and own not in in_use:
        return own
    begin = uids.index(last) + 1 if last is not None and last in uids else 0
    in_turn = [uids[(begin + n) % len(uids)] for n in range(len(uids))]
    free = [uid for uid in in_turn if uid not in in_use]
    kept = set(owners.values())
    return next((uid for uid in free if uid not in kept), free[0] if free else None)
