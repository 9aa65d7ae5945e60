"""The queue of due keys. A key has at most one holder, and no key is lost. Runs nothing itself."""

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# Heap entries become stale when their key is added with an earlier time. They are dropped once they outnumber the live
# entries by this much.
_STALE_SLACK = 64


class QueueClosedError(Exception):
    """The queue hands out no more keys."""


@dataclass(frozen=True, slots=True)
class _Due:
    at: float  # loop time
    urgent: bool  # it leaves before keys that are not

    def merged(self, other: "_Due | None") -> "_Due":
        if other is None:
            return self
        return _Due(min(self.at, other.at), self.urgent or other.urgent)


class KeyedQueue(Generic[K]):
    """A set of keys that are due now or later, handed out to at most one holder each.

    A key is in one of three places: ready, delayed, or handed out. A key that is added while handed out becomes due
    once when its holder calls `done`. Of two adds the earlier time wins. Urgent keys leave first; otherwise the order
    is first come, first served.

    `max_keys` bounds distinct keys in all three places. A key beyond it sets `overflow` and is dropped; the queue's
    owner then adds every key again once there is capacity.
    """

    def __init__(self, *, max_keys: int = 1_000_000) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys must be at least 1, got {max_keys}")
        self.max_keys = max_keys
        self.overflow = False
        self._urgent: OrderedDict[K, None] = OrderedDict()
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._delayed: dict[K, _Due] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = count()
        self._held: dict[K, _Due | None] = {}
        self._takers: deque[asyncio.Future[None]] = deque()
        # Not read from the handle: for a time in the past uvloop returns a handle without it.
        self._timer: asyncio.Handle | None = None
        self._timer_due = 0.0
        self._closed = False

    @property
    def depth(self) -> int:
        """Number of ready keys."""
        return len(self._urgent) + len(self._ready)

    def __len__(self) -> int:
        return self.depth + len(self._delayed) + len(self._held)

    def add(self, key: K, *, after_s: float = 0.0, urgent: bool = False) -> None:
        """Makes `key` due in `after_s` seconds, or earlier if it was already due earlier.

        Call it from the loop's thread. Never raises: a full queue sets `overflow`, a closed queue drops the key.
        """
        if self._closed:
            return
        due = _Due(asyncio.get_running_loop().time() + max(0.0, after_s), urgent)
        if key in self._held:
            self._held[key] = due.merged(self._held[key])
        elif key in self._urgent:
            return
        elif key in self._ready:
            if urgent and after_s <= 0:
                del self._ready[key]
                self._urgent[key] = None
        elif key in self._delayed:
            self._place(key, due.merged(self._delayed[key]))
        elif len(self) >= self.max_keys:
            self.overflow = True
        else:
            self._place(key, due)

    async def take(self, limit: int = 1) -> list[K]:
        """Waits, without a limit, until a key is ready; hands out up to `limit` keys, to be given back with `done`."""
        while not self._closed and self.depth == 0:
            taker = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                # Either still waiting, or woken and cancelled at once: then another taker must be woken.
                if taker in self._takers:
                    self._takers.remove(taker)
                elif self.depth:
                    self._wake(1)
                raise
        if self._closed:
            raise QueueClosedError
        taken: list[K] = []
        for keys in (self._urgent, self._ready):
            while keys and len(taken) < limit:
                taken.append(keys.popitem(last=False)[0])
        self._held.update(dict.fromkeys(taken))
        self._wake(self.depth)
        return taken

    def done(self, key: K) -> None:
        """Gives back a key that is handed out; it becomes due again if it was added in the meantime."""
        due = self._held.pop(key)
        if due is not None and not self._closed:
            self._place(key, due)

    def close(self) -> None:
        """Drops all keys; callers of `take` get QueueClosedError."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for place in (self._urgent, self._ready, self._delayed, self._heap):
            place.clear()
        self._wake(len(self._takers))

    def _place(self, key: K, due: _Due) -> None:
        """Makes a key, which is neither ready nor handed out, ready or delayed."""
        if due.at <= asyncio.get_running_loop().time():
            self._delayed.pop(key, None)
            (self._urgent if due.urgent else self._ready)[key] = None
            self._wake(1)
            return
        known = self._delayed.get(key)
        self._delayed[key] = due
        if known is None or known.at != due.at:
            heapq.heappush(self._heap, (due.at, next(self._order), key))
            self._drop_stale()
            self._set_timer()

    def _drop_stale(self) -> None:
        """Bounds the heap."""
        if len(self._heap) > 2 * len(self._delayed) + _STALE_SLACK:
            self._heap = [(due.at, next(self._order), key) for key, due in self._delayed.items()]
            heapq.heapify(self._heap)

    def _set_timer(self) -> None:
        if self._timer is not None and self._heap and self._timer_due == self._heap[0][0]:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._heap:
            self._timer_due = self._heap[0][0]
            self._timer = asyncio.get_running_loop().call_at(self._timer_due, self._promote_due)

    def _promote_due(self) -> None:
        # The loop runs a timer up to one clock tick early: the keys of that timer are due, whatever time() returns.
        now = max(asyncio.get_running_loop().time(), self._timer_due)
        self._timer = None
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heapq.heappop(self._heap)
            due = self._delayed.get(key)
            if due is not None and due.at == at:
                del self._delayed[key]
                (self._urgent if due.urgent else self._ready)[key] = None
        self._set_timer()
        self._wake(self.depth)

    def _wake(self, n: int) -> None:
        for _ in range(min(n, len(self._takers))):
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
