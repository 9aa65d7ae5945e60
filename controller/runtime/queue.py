"""The keyed queue: which keys are due, never two holders of one key, nothing lost. Runs nothing itself."""

import asyncio
import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# Stale heap entries (their key was added earlier meanwhile) are swept once they outnumber the live ones by this much.
_SWEEP_SLACK = 64


class QueueClosedError(Exception):
    """The queue was closed; nothing will be handed out any more."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """When a key wants to run, in loop time, and whether it goes before the others."""

    due: float
    urgent: bool

    def merged(self, other: "_Wish | None") -> "_Wish":
        """Return the wish that satisfies both: the earlier time, urgent if either is."""
        if other is None:
            return self
        return _Wish(min(self.due, other.due), self.urgent or other.urgent)


class KeyedQueue(Generic[K]):
    """A set of keys that are due now or later, handed out to at most one holder each.

    A key is in one of three places: ready, delayed, or handed out. A key added while handed out is remembered and comes
    back once when its holder calls `done`. Of two adds the earlier time wins. Urgent keys leave before the others,
    otherwise the order is first come, first served.

    Args:
        max_keys: bound on distinct keys in all three places. What comes beyond it sets `overflow` instead of growing
            the queue; whoever owns the queue then adds everything again once there is room.
    """

    def __init__(self, *, max_keys: int = 1_000_000) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys must be at least 1, got {max_keys}")
        self.max_keys = max_keys
        self.overflow = False
        self._urgent: OrderedDict[K, None] = OrderedDict()
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._delayed: dict[K, _Wish] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = count()
        self._held: dict[K, _Wish | None] = {}
        self._takers: deque[asyncio.Future[None]] = deque()
        # Not read from the handle: for a time that is past uvloop returns one that does not know it.
        self._timer: asyncio.Handle | None = None
        self._timer_due = 0.0
        self._closed = False

    @property
    def depth(self) -> int:
        """How many keys are ready to be taken now."""
        return len(self._urgent) + len(self._ready)

    def __len__(self) -> int:
        """How many distinct keys the queue knows: ready, delayed and handed out."""
        return self.depth + len(self._delayed) + len(self._held)

    def add(self, key: K, *, after_s: float = 0.0, urgent: bool = False) -> None:
        """Ask that `key` be handed out, `after_s` seconds from now or sooner if it was asked for sooner.

        Call it from the loop's thread. Never raises for a full or closed queue: full sets `overflow`, closed forgets.
        """
        if self._closed:
            return
        wish = _Wish(asyncio.get_running_loop().time() + max(0.0, after_s), urgent)
        if key in self._held:
            self._held[key] = wish.merged(self._held[key])
        elif key in self._urgent:
            return
        elif key in self._ready:
            if urgent and after_s <= 0:
                del self._ready[key]
                self._urgent[key] = None
        elif key in self._delayed:
            self._place(key, wish.merged(self._delayed[key]))
        elif len(self) >= self.max_keys:
            self.overflow = True
        else:
            self._place(key, wish)

    async def take(self, limit: int = 1) -> list[K]:
        """Wait until a key is ready, then hand out up to `limit` of them; each must be given back with `done`.

        Waits without a limit, as long as there is nothing to do.

        Raises:
            QueueClosedError: the queue was closed.
        """
        while not self._closed and self.depth == 0:
            taker = asyncio.get_running_loop().create_future()
            self._takers.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                # Either still in line, or woken and cancelled in the same breath: then somebody else must be woken.
                if taker in self._takers:
                    self._takers.remove(taker)
                elif self.depth:
                    self._wake(1)
                raise
        if self._closed:
            raise QueueClosedError
        taken: list[K] = []
        for line in (self._urgent, self._ready):
            while line and len(taken) < limit:
                taken.append(line.popitem(last=False)[0])
        self._held.update(dict.fromkeys(taken))
        self._wake(self.depth)
        return taken

    def done(self, key: K) -> None:
        """Give `key` back; it becomes due again if it was added meanwhile.

        Raises:
            KeyError: the key is not handed out.
        """
        wish = self._held.pop(key)
        if wish is not None and not self._closed:
            self._place(key, wish)

    def close(self) -> None:
        """Forget everything and let whoever waits in `take` go with QueueClosedError."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for place in (self._urgent, self._ready, self._delayed, self._heap):
            place.clear()
        self._wake(len(self._takers))

    def _place(self, key: K, wish: _Wish) -> None:
        """Put a key that is neither ready nor handed out where its wish says."""
        if wish.due <= asyncio.get_running_loop().time():
            self._delayed.pop(key, None)
            (self._urgent if wish.urgent else self._ready)[key] = None
            self._wake(1)
            return
        known = self._delayed.get(key)
        self._delayed[key] = wish
        if known is None or known.due != wish.due:
            heapq.heappush(self._heap, (wish.due, next(self._order), key))
            self._sweep()
            self._set_timer()

    def _sweep(self) -> None:
        """Drop heap entries that no longer speak for their key, once they are many; else the heap has no bound."""
        if len(self._heap) > 2 * len(self._delayed) + _SWEEP_SLACK:
            self._heap = [(wish.due, next(self._order), key) for key, wish in self._delayed.items()]
            heapq.heapify(self._heap)

    def _set_timer(self) -> None:
        if self._timer is not None and self._heap and self._timer_due == self._heap[0][0]:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._heap:
            self._timer_due = self._heap[0][0]
            self._timer = asyncio.get_running_loop().call_at(self._timer_due, self._ripen)

    def _ripen(self) -> None:
        """Move what has become due from delayed to ready."""
        # The loop runs a timer up to one clock tick early: what the timer was set for is due, whatever time() says.
        now = max(asyncio.get_running_loop().time(), self._timer_due)
        self._timer = None
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            wish = self._delayed.get(key)
            if wish is not None and wish.due == due:
                del self._delayed[key]
                (self._urgent if wish.urgent else self._ready)[key] = None
        self._set_timer()
        self._wake(self.depth)

    def _wake(self, n: int) -> None:
        for _ in range(min(n, len(self._takers))):
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
