"""This gateway's share of one limit of one key. Pure: the caller gives the time."""

from math import ceil, floor
from typing import Final

from schemas.key_limits import MINUTE_S, LimitKind, ShareAsk, ShareGrant

AHEAD_S: Final = 2.0  # how long a share is meant to last
_NEGLIGIBLE: Final = 0.05
_MEASURE_S: Final = 0.5  # the shortest time over which use is measured
_MOST_AHEAD: Final = 1 / 8  # of a limit of tokens
_NEARLY_ALL: Final = 1 / 4  # of such a limit: when no more is left, what comes back is returned to the store at once
OF_TOKENS: Final = (LimitKind.DAY, LimitKind.TOKENS)
_DENIED_FOR_S: Final = {LimitKind.PARALLEL: 0.05}
_DENIED_FOR_DEFAULT_S: Final = 0.25


class Share:
    """A share, and the totals by which the store knows what was used.

    Attributes:
        held: what requests may use here; negative: owed. For `PARALLEL` all slots, also those in use.
        spent: total used; for `PARALLEL` the requests under way.
        minted: total that it gave itself while the store was away.
        waiting: what requests that wait for a larger share lack of it.
        reserved: what requests under way may use; it is counted as spent.
        days: number of ended days, for a limit per day.
    """

    __slots__ = (
        *("_alone_since", "_denied_at", "_granted", "_granted_at", "_key", "_level", "_measured", "_rate"),
        *("_requested", "_taken", "capacity", "days", "held", "kind", "minted", "reserved", "spent", "waiting"),
    )

    def __init__(self, key: str, kind: LimitKind, capacity: int) -> None:
        self._key = key
        self.kind = kind
        self.capacity = capacity
        self.held = 0.0
        self.spent = 0.0
        self.minted = 0.0
        self.waiting = 0
        self.reserved = 0
        self.days = 0
        self._taken = 0.0  # as `spent`, without subtracting what came back
        self._level: float | None = None  # what was left at the store at its last report
        self._granted_at = 0.0
        self._granted = 0.0  # what this gateway held then
        self._denied_at = float("-inf")
        self._alone_since: float | None = None  # time of its last refill by itself; None: the store answers
        self._requested: ShareAsk | None = None
        self._rate = 0.0  # the use in a second
        self._measured = (0.0, 0.0)  # when, and `taken` then

    # Requests

    def has(self, amount: int = 1) -> bool:
        """Whether this amount is here; for `PARALLEL`, whether this many more requests may start."""
        if self.kind is LimitKind.PARALLEL:
            return self.spent + amount <= min(self.held, self.capacity)
        return min(self.held, self.capacity) >= amount

    def take(self) -> None:
        if self.kind is LimitKind.PARALLEL:
            self.spent += 1
        elif self.kind is LimitKind.REQUESTS:
            self.charge(1)

    def leave(self) -> None:
        if self.kind is LimitKind.PARALLEL:
            self.spent -= 1
            self._denied_at = float("-inf")  # its slot is free, also while it is being given back

    def charge(self, amount: float) -> None:
        """Counts what was used. Below zero it comes back."""
        self.held -= amount
        self.spent += amount
        self._taken += max(0.0, amount)

    def reserve(self, amount: int) -> None:
        """Counts what a request may use, until `settle` counts what it has used."""
        self.reserved += amount
        self.charge(amount)

    def settle(self, reserved: int, used: int, now: float, age_s: float) -> None:
        """Counts what a request has used in place of its reservation, which is `age_s` old.

        Of a limit per minute, one that is older than a minute has been refilled since, and does not come back.
        """
        self.reserved -= reserved
        comes_back = self.kind is LimitKind.DAY or age_s < MINUTE_S
        self.charge(used - reserved if comes_back else max(0, used - reserved))
        self._cap(now)

    def _cap(self, now: float) -> None:
        """Keeps `held` and the store's level within the capacity after reserved tokens came back.

        The store has refilled a part of them since; it learns from `spent` how many came back.
        """
        if self.kind in OF_TOKENS:
            self.held = min(self.held, max(self.capacity - self._level_at(now), self._granted, 0.0))

    def _level_at(self, now: float) -> float:
        """What the store has, as far as it is known."""
        if self._level is None or self._alone_since is not None:
            return 0.0
        return self._level + self.kind.per_second(self.capacity) * (now - self._granted_at)

    # The store

    def ask(self, now: float) -> ShareAsk | None:
        """The request to the store; None where nothing would change. Returned amounts are not used from then on."""
        self._measure(now)
        want = self._want()
        idle = want == self.held and not self.waiting
        if idle and self._requested is not None and self._requested.spent == self.spent:
            return None
        if idle and self.spent == 0:
            return None
        self.held = min(self.held, max(float(want), self.spent if self.kind is LimitKind.PARALLEL else 0.0))
        return ShareAsk(self._key, self.kind, self.spent, self.minted, want, max(0, want - self.waiting))

    def rests(self) -> bool:
        """Whether nothing is due until the next use, once `ask` has returned None."""
        if self.kind is LimitKind.PARALLEL:
            return True  # what it wants is not a matter of time
        return self._rate <= _NEGLIGIBLE and self._measured[1] == self._taken

    def granted(self, ask: ShareAsk, grant: ShareGrant, now: float) -> None:
        """Applies the store's grant."""
        used_since = 0.0 if self.kind is LimitKind.PARALLEL else self.spent - ask.spent
        self.held = grant.held - used_since + (self.minted - ask.minted)
        self._level, self._granted_at = grant.level, now
        self._granted = grant.held
        self._requested = ask
        self._alone_since = None
        self._cap(now)
        if not self.has():
            self._denied_at = now

    def _measure(self, now: float) -> None:
        at, taken = self._measured
        if now - at >= _MEASURE_S:
            fresh = (self._taken - taken) / (now - at) if at else 0.0
            self._rate = max(fresh, (self._rate + fresh) / 2)
            self._measured = (now, self._taken)

    def _want(self) -> int:
        """An amount that lasts for a while at the present use; 0 without use, so that other gateways get it."""
        if self.kind is LimitKind.PARALLEL:
            return min(self.capacity, int(self.spent) + self.waiting)
        ahead = ceil(self._rate * AHEAD_S) if self._rate > _NEGLIGIBLE else 0
        if self.kind in OF_TOKENS:  # most of what is reserved comes back, and another gateway may need all that is left
            ahead = min(ahead, ceil(self.capacity * _MOST_AHEAD))
        return min(self.capacity, ahead + self.waiting)

    # While the store is away

    def refill_alone(self, now: float, fraction: float) -> None:
        """Refills by this gateway's own fraction. The first time it gives one request, so that no key is locked out."""
        since, self._alone_since = self._alone_since, now
        own = max(1.0, self.capacity * fraction)
        if self.kind is LimitKind.PARALLEL:
            self.held = max(self.held, float(floor(own)))
            return
        if since is None:
            owed = max(0.0, -self.held)  # the store had enough to pay it
            fresh = max(0.0, 1.0 - max(0.0, self.held)) + min(owed, fraction * max(0.0, self._level or 0.0))
            if self.kind is LimitKind.DAY:
                fresh = fraction * max(0.0, self.capacity if self._level is None else self._level)
        else:
            fresh = (now - since) * fraction * self.kind.per_second(self.capacity)
        if self.kind is not LimitKind.DAY:
            fresh = min(fresh, max(0.0, own - self.held))
        self.held += fresh
        self.minted += fresh

    def new_day(self, fraction: float | None) -> None:
        """Resets a limit per day at the end of a UTC day. `fraction`: this gateway's, while the store is away."""
        if self.kind is not LimitKind.DAY:
            return
        self._level = float(self.capacity)
        self._denied_at = float("-inf")
        self.days += 1
        self.reserved = 0
        if fraction is not None:
            fresh = fraction * self.capacity
            self.minted += fresh - self.held
            self.held = fresh

    # For clients

    def denied(self, now: float) -> bool:
        """Whether the store reported a moment ago that nothing is left, so that a new request would get nothing."""
        return now - self._denied_at <= _DENIED_FOR_S.get(self.kind, _DENIED_FOR_DEFAULT_S) and self.left(now) < 1

    def is_short(self) -> bool:
        """Whether the store had little left at its last report, or this gateway owes it."""
        least = self.capacity * _NEARLY_ALL if self.kind in OF_TOKENS else 1
        return self.held < 0 or (self._level is not None and self._level < max(1, least))

    def left(self, now: float) -> float:
        """The remaining amount here and at the store, as far as known."""
        level = self._level_at(now)
        used = self.spent if self.kind is LimitKind.PARALLEL else 0.0
        return min(float(self.capacity), self.held - used + level)

    def wait_s(self, now: float, fraction: float | None, need: int = 1) -> float:
        """Seconds until this amount is left; 0 if it is now. `fraction`: this gateway's, while the store is away."""
        rate = self.kind.per_second(self.capacity) * (1.0 if fraction is None else max(fraction, 1e-6))
        lacking = need - self.left(now)
        if lacking <= 0:
            return 0.0
        return lacking / rate if rate else 1.0
