"""Limits of keys at this gateway: admits and refuses requests, and requests shares of the store. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import ceil
from typing import Final

from gateway.quotas.share import OF_TOKENS, Share
from gateway.quotas.token_history import TokenHistory
from schemas.key_limits import KeyLimits, LimitKind, ShareAsk, SharesAnswer

_ORDER: Final = (LimitKind.DAY, LimitKind.PARALLEL, LimitKind.REQUESTS, LimitKind.TOKENS)
_STATED: Final = (LimitKind.REQUESTS, LimitKind.TOKENS)
_CODES: Final = {
    LimitKind.DAY: "quota_used_up",
    LimitKind.PARALLEL: "too_many_parallel",
    LimitKind.REQUESTS: "rate_limited",
    LimitKind.TOKENS: "rate_limited",
}
DAY_S: Final = 86400.0
_MOST_HISTORIES: Final = 256  # of a key; the one that was used least recently goes first


class Must(Enum):
    """What a request without a share must do first."""

    ASK = "ask"  # the store may have more


@dataclass(frozen=True, slots=True)
class Refused:
    """A request beyond a limit."""

    code: str
    message: str
    headers: Mapping[str, str]


class KeyUse:
    """The shares of one key, its requests under way, and what earlier requests used."""

    __slots__ = ("_histories", "limits", "shares", "under_way")

    def __init__(self, key: str, limits: KeyLimits) -> None:
        self.limits = limits
        self.under_way = 0
        self._histories: dict[str, TokenHistory] = {}
        self.shares = {kind: Share(key, kind, limit) for kind, limit in limits.capacities().items()}

    def change(self, key: str, limits: KeyLimits) -> None:
        """Applies changed limits: what is under way and used stays counted."""
        same, self.limits = limits == self.limits, limits
        if same:
            return
        capacities = limits.capacities()
        for kind, capacity in capacities.items():
            share = self.shares.setdefault(kind, Share(key, kind, capacity))
            share.capacity = capacity
        for kind in set(self.shares) - set(capacities):
            del self.shares[kind]

    def limits_tokens(self) -> bool:
        return not self.shares.keys().isdisjoint(OF_TOKENS)

    def history(self, name: str) -> TokenHistory:
        """The usage of its latest requests of the kind `name`."""
        history = self._histories.pop(name, None) or TokenHistory()
        self._histories[name] = history
        if len(self._histories) > _MOST_HISTORIES:
            del self._histories[next(iter(self._histories))]
        return history

    def lacks(self, tokens: int) -> dict[LimitKind, int]:
        """The missing tokens of each limit, to reserve this many at this gateway."""
        needs = {kind: min(tokens, share.capacity) for kind, share in self.shares.items() if kind in OF_TOKENS}
        return {kind: need for kind, need in needs.items() if not self.shares[kind].has(need)}

    def asks(self, now: float) -> list[ShareAsk]:
        """Requests to the store that are due now."""
        return [ask for share in self.shares.values() if (ask := share.ask(now))]

    def rests(self) -> bool:
        return not self.under_way and all(share.rests() for share in self.shares.values())

    def headers(self, now: float, fraction: float | None) -> dict[str, str]:
        """The `x-ratelimit-*` headers: limit, remaining, and the time until one more request may pass."""
        fields: dict[str, str] = {}
        for kind in _STATED:
            share = self.shares.get(kind)
            if share is not None:
                fields[f"x-ratelimit-limit-{kind}"] = str(share.capacity)
                fields[f"x-ratelimit-remaining-{kind}"] = str(max(0, int(share.left(now))))
                fields[f"x-ratelimit-reset-{kind}"] = f"{ceil(share.wait_s(now, fraction))}s"
        return fields


class Ticket:
    """A request that passed. `end` it exactly once; both work on the limits that the key has then."""

    __slots__ = ("_reserved", "_reserved_at", "_shares", "use")

    def __init__(self, use: KeyUse) -> None:
        self.use = use
        use.under_way += 1
        self._reserved: tuple[tuple[Share, int, int], ...] = ()
        self._reserved_at = 0.0
        self._shares = tuple(use.shares.values())
        for share in self._shares:
            share.take()

    def reserve(self, tokens: int, now: float) -> None:
        """Counts tokens that it may use, of each limit at most all of it, until they are charged."""
        shares = [share for kind, share in self.use.shares.items() if kind in OF_TOKENS]
        self._reserved = tuple((share, min(tokens, share.capacity), share.days) for share in shares)
        self._reserved_at = now
        for share, amount, _ in self._reserved:
            share.reserve(amount)

    def charge(self, tokens: int, now: float) -> None:
        """Counts tokens of its prompt and answer, in place of those that were reserved."""
        reserved, self._reserved = self._reserved, ()
        for kind, share in self.use.shares.items():
            if kind in OF_TOKENS:
                # What was reserved on another day, or of a limit that was removed since, is not this share's.
                amounts = (amount for other, amount, day in reserved if other is share and day == share.days)
                share.settle(next(amounts, 0), tokens, now, now - self._reserved_at)

    def end(self) -> bool:
        """Frees its slot. Returns whether other gateways may wait for it."""
        for share in self._shares:
            share.leave()
        self._shares = ()
        self.use.under_way -= 1
        return LimitKind.PARALLEL in self.use.shares


class Limits:
    """The shares of all keys. `away`: the store does not answer."""

    def __init__(self) -> None:
        self.keys: dict[str, KeyUse] = {}
        self._stirred: dict[str, KeyUse] = {}  # keys with requests to the store that may be due
        self._fraction = 1.0  # until the store reports one
        self._day_ends_at = float("inf")
        self.away = False

    @property
    def fraction(self) -> float | None:
        """The part of each limit that this gateway refills by itself; None while the store does it."""
        return self._fraction if self.away else None

    def use_of(self, key: str, limits: KeyLimits) -> KeyUse:
        """The shares of a key with these limits, for a request."""
        use = self.keys.get(key)
        if use is None:
            use = self.keys[key] = KeyUse(key, limits)
        elif limits is not use.limits:
            use.change(key, limits)
        self._stirred[key] = use
        return use

    def begin(
        self, use: KeyUse, now: float, day_left_s: float, *, requested: bool = False, answered: bool = True
    ) -> Ticket | Refused | Must:
        """Lets one request pass, refuses it, or requires a request to the store first.

        `now`: monotonic seconds.
        `day_left_s`: seconds until 00:00 UTC.
        `requested`: the store was requested for it already; what lacks now is refused.
        `answered`: the store did answer; else this gateway's own part decides, since what is left is unknown.
        """
        if not use.shares:
            return Ticket(use)
        self._end_day(now)
        if self.away or not answered:
            for share in use.shares.values():
                share.refill_alone(now, self._fraction)
        lacking = [kind for kind in _ORDER if kind in use.shares and not use.shares[kind].has()]
        if not lacking:
            return Ticket(use)
        if self.away or requested or any(use.shares[kind].denied(now) for kind in lacking):
            return self._refusal(use, lacking[0], now, day_left_s)
        return Must.ASK

    def reserve(
        self,
        ticket: Ticket,
        tokens: int,
        now: float,
        day_left_s: float,
        *,
        requested: bool = False,
        answered: bool = True,
    ) -> Refused | Must | None:
        """Reserves tokens for a request that passed. Returns None once that is done. Arguments as of `begin`.

        While the store is away, a request needs one token that is left: what this gateway refills may never be
        as much as the request may use.
        """
        use = ticket.use
        self._end_day(now)
        alone = self.away or not answered
        if alone:
            for kind in OF_TOKENS:
                if kind in use.shares:
                    use.shares[kind].refill_alone(now, self._fraction)
        lacking = use.lacks(min(tokens, 1) if alone else tokens)
        if not lacking:
            ticket.reserve(tokens, now)
            return None
        if alone or requested:
            kind = next(limit for limit in _ORDER if limit in lacking)
            return self._refusal(use, kind, now, day_left_s, lacking[kind])
        return Must.ASK

    def _refusal(self, use: KeyUse, kind: LimitKind, now: float, day_left_s: float, need: int = 1) -> Refused:
        share = use.shares[kind]
        if kind is LimitKind.DAY and share.left(now) + share.reserved >= need:
            wait_s, code = 1, "rate_limited"
            problem = f"requests under way may use what is left of this key's {share.capacity} tokens for today (UTC)"
        else:
            left_s = day_left_s if kind is LimitKind.DAY else share.wait_s(now, self.fraction, need)
            wait_s, code = max(1, ceil(left_s)), _CODES[kind]
            problem = _lack_of(share, max(0, int(share.left(now))), need)
        headers = use.headers(now, self.fraction) | {"Retry-After": str(wait_s)}
        if code == _CODES[LimitKind.DAY]:
            headers["x-should-retry"] = "false"
        return Refused(code, f"{problem}; try again in {wait_s} s", headers)

    def is_short(self, key: str) -> bool:
        """Whether the store has nothing left for the key, or this gateway owes it."""
        use = self.keys.get(key)
        return use is not None and any(share.is_short() for share in use.shares.values())

    # The store

    def asks(self, now: float) -> list[ShareAsk]:
        """Requests to the store that are due now. Keys without recent use are skipped."""
        self._end_day(now)
        due: list[ShareAsk] = []
        for key, use in tuple(self._stirred.items()):
            asks = use.asks(now)
            due += asks
            if not asks and use.rests():
                del self._stirred[key]
        return due

    def take_answer(self, asks: Iterable[ShareAsk], answer: SharesAnswer, now: float) -> None:
        """Applies the store's answer."""
        self.away = False
        self._fraction = answer.fraction
        self._day_ends_at = now + answer.day_ends_s
        grants = {(grant.key, grant.kind): grant for grant in answer.grants}
        for ask in asks:
            use, grant = self.keys.get(ask.key), grants.get((ask.key, ask.kind))
            if use is not None and grant is not None and ask.kind in use.shares:
                use.shares[ask.kind].granted(ask, grant, now)

    def forget(self, keys: Iterable[str]) -> None:
        """Drops keys that are gone. Requests under way end on the limits that they started with."""
        for key in keys:
            self.keys.pop(key, None)
            self._stirred.pop(key, None)

    def _end_day(self, now: float) -> None:
        if now >= self._day_ends_at:
            self._day_ends_at += DAY_S
            self._stirred.update(self.keys)
            for use in self.keys.values():
                share = use.shares.get(LimitKind.DAY)
                if share is not None:
                    share.new_day(self.fraction)


def _lack_of(share: Share, left: int, need: int) -> str:
    if need > 1:
        period = "for today (UTC)" if share.kind is LimitKind.DAY else "per minute"
        return (
            f"this request may use {need} tokens, and {left} of this key's {share.capacity} {period} are left; "
            "state a smaller max_tokens"
        )
    return {
        LimitKind.DAY: f"all {share.capacity} tokens of this key for today (UTC) are used",
        LimitKind.PARALLEL: f"this key may have {share.capacity} requests at once, and has them",
        LimitKind.REQUESTS: f"this key may send {share.capacity} requests per minute, and has sent them",
        LimitKind.TOKENS: f"this key may use {share.capacity} tokens per minute, and has used them",
    }[share.kind]
