"""Leases places in queues from the store, and returns them. A request waits for the database only for a place."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

import structlog

from controller.live.change_fanout import ChangeFanout
from controller.live.database import DATABASE_KEPT_S
from controller.live.demand import PLACES, DemandReports
from controller.live.endpoints import DATABASE_ERRORS, is_disk_full
from gateway.queueing.queue_leases import QueueLeases

log = structlog.get_logger(__name__)

T = TypeVar("T")
PERIOD_S: Final = 1.0
_ANSWER_S: Final = 0.8
_DECIDED_S: Final = 1.0  # no request waits longer for the store and for what follows its silence
_MARGIN_S: Final = 0.05  # for which the controller's checks may still be under way
_SPACING_S: Final = 0.02  # between two exchanges
_STOP_LIMIT_S: Final = 2.0
_ERRORS: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, TimeoutError)


class LeaseClient(Generic[T]):
    """Leases places in queues: each second while requests wait, and at once where a request or gateway lacks one.

    Args:
        in_touch_s: seconds for which the store has answered without a gap.
        refuse: ends a request for which its queue is full, given the deployment's uid.
        others_are_in_touch: whether the controller reaches the database, given a limit in seconds.

    Attributes:
        task: runs from `start` to `stop`. It ends earlier only by a defect.
    """

    def __init__(
        self,
        reports: DemandReports,
        places: QueueLeases[T],
        in_touch_s: Callable[[], float],
        refuse: Callable[[str, T], None],
        others_are_in_touch: Callable[[float], Awaitable[bool]],
    ) -> None:
        self._reports = reports
        self._places = places
        self._in_touch_s = in_touch_s
        self._refuse = refuse
        self._others_are_in_touch = others_are_in_touch
        self._poked = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def start(self, changes: ChangeFanout) -> None:
        self.task = asyncio.create_task(self._run(changes), name="queue-leases")

    def poke(self) -> None:
        self._poked.set()

    async def stop(self) -> None:
        """Ends the task. Leases are returned when the gateway signs off."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task], timeout=_STOP_LIMIT_S)

    async def _run(self, changes: ChangeFanout) -> None:
        with changes.woken_by(PLACES, self.poke):
            while True:
                await self._exchange()
                await asyncio.sleep(_SPACING_S)
                if not self._places.undecided:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(PERIOD_S):
                            await self._poked.wait()
                self._poked.clear()

    async def _exchange(self) -> None:
        asks, sent_at = self._places.asks(), asyncio.get_running_loop().time()
        if not asks and not self._places.away:
            return
        away = self._places.away
        try:
            async with asyncio.timeout(_ANSWER_S):
                grants = await self._reports.lease_places(asks, self._in_touch_s())
            refused = self._places.granted(grants, sent_at)
        except _ERRORS as error:
            # A full disk answers no gateway, though the controller still reads.
            alone = not is_disk_full(error) and await self._is_alone(sent_at)
            if not away or alone is not self._places.alone:
                why = str(error) or type(error).__name__
                log.warning("places in queues not leased", lets_wait="none new" if alone else "its part", error=why)
            refused = self._places.unanswered(alone=alone)
        for uid, request in refused:
            self._refuse(uid, request)

    async def _is_alone(self, since: float) -> bool:
        """Whether only this gateway has lost the store, which has not answered it since loop time `since`.

        Then other gateways may take its places. The controller shows checks of its database that it made up to
        `DATABASE_KEPT_S` earlier. So this queries the controller only when those checks must be later than `since`.
        """
        loop = asyncio.get_running_loop()
        await asyncio.sleep(since + DATABASE_KEPT_S + _MARGIN_S - loop.time())
        return await self._others_are_in_touch(since + _DECIDED_S - loop.time())
