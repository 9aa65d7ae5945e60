"""Keys' limits and usage: a task requests shares of the store, and another hands usage over.

Only a request that would be refused waits for the database: for an exchange, at most `ANSWER_S`.
"""

import asyncio
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from controller.live.endpoints import DATABASE_ERRORS, Database
from controller.live.key_ring import Principal
from controller.live.key_use import exchange_shares, leave_shares, write_usage
from gateway.errors import GatewayError
from gateway.quotas.limits import DAY_S, Limits, Must, Refused, Ticket
from gateway.quotas.share import Share
from gateway.usage.usage_record import UsageBatches, UsageRecord

log = structlog.get_logger(__name__)

ANSWER_S: Final = 1.0
PERIOD_S: Final = 1.0
SPACING_S: Final = 0.02  # between two exchanges
FLUSH_S: Final = 2.0
_EXCHANGE_LIMIT_S: Final = 1.5
_WRITE_LIMIT_S: Final = 10.0
_STOP_LIMIT_S: Final = 2.0
_ERRORS: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, TimeoutError)


class QuotaClient:
    """Limits and usage of all keys at this gateway.

    Attributes:
        limited: keys (by id) that had limits here. Requests of other keys pass without this client.
        tasks: run from `start` to `stop`. They end earlier only by a defect.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._id = str(uuid.uuid4())
        self._limits = Limits()
        self.batches = UsageBatches()
        self.limited = self._limits.keys
        self._wake = asyncio.Event()
        self._next: asyncio.Future[None] = self._loop.create_future()  # set when the next exchange has ended
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts the tasks. They end only by a defect."""
        self.tasks = [
            asyncio.create_task(self._share(), name="key-shares"),
            asyncio.create_task(self._hand_over(), name="usage"),
        ]

    async def stop(self) -> None:
        """Hands over what was used, gives the shares back, and ends the tasks."""
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=_STOP_LIMIT_S)
        with suppress(*_ERRORS):
            async with asyncio.timeout(_STOP_LIMIT_S):
                while await self._flush():
                    pass
                async with self._database.transaction() as connection:
                    await leave_shares(connection, self._id)

    # Requests

    def begin(self, principal: Principal, path: str) -> UsageRecord | None:
        """Lets a request pass; None where it must `wait` for the store.

        Raises:
            GatewayError: 429: it is beyond a limit of its key.
        """
        use = self._limits.use_of(principal.key_id, principal.limits)
        outcome = self._limits.begin(use, self._loop.time(), _day_left_s())
        return None if outcome is Must.ASK else self._usage_record(principal, path, outcome)

    async def wait(self, principal: Principal, path: str, limit_s: float = ANSWER_S) -> UsageRecord:
        """Lets a request pass once the store has answered, or has not for `limit_s`.

        A store that is slow refuses nothing: then this gateway's part of each limit decides.

        Raises:
            GatewayError: 429: nothing is left.
        """
        use = self._limits.use_of(principal.key_id, principal.limits)
        answered = await self._ask_for([(share, 1) for share in use.shares.values()], limit_s)
        use = self._limits.use_of(principal.key_id, principal.limits)
        outcome = self._limits.begin(use, self._loop.time(), _day_left_s(), requested=True, answered=answered)
        if outcome is Must.ASK:
            raise AssertionError("the store has answered")
        return self._usage_record(principal, path, outcome)

    def reserve(self, usage: UsageRecord, *, requested: bool = False, answered: bool = True) -> bool:
        """Reserves the tokens that a request may use; False where the store must be requested first.

        Arguments as of `Limits.begin`.

        Raises:
            GatewayError: 429: too few are left.
        """
        ticket = usage.ticket
        if ticket is None or not usage.expected:
            return True
        now, day_left_s = self._loop.time(), _day_left_s()
        outcome = self._limits.reserve(ticket, usage.expected, now, day_left_s, requested=requested, answered=answered)
        if isinstance(outcome, Refused):
            raise GatewayError(429, outcome.code, outcome.message, headers=outcome.headers)
        return outcome is None

    async def wait_to_reserve(self, usage: UsageRecord, limit_s: float = ANSWER_S) -> None:
        """As `reserve`, once the store has answered, or has not for `limit_s`.

        Raises:
            GatewayError: 429: too few are left.
        """
        if usage.use is None:
            return
        shares, lacks = usage.use.shares, usage.use.lacks(usage.expected)
        answered = await self._ask_for([(shares[kind], need) for kind, need in lacks.items()], limit_s)
        if not self.reserve(usage, requested=True, answered=answered):
            raise AssertionError("the store has answered")

    async def _ask_for(self, needs: Sequence[tuple[Share, int]], limit_s: float) -> bool:
        """Requests larger shares of the store. Returns whether it has answered within the limit."""
        for share, need in needs:
            share.waiting += need
        try:
            self._wake.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await asyncio.shield(self._next)
                    return True
            return False
        finally:
            for share, need in needs:
                share.waiting -= need

    def _usage_record(self, principal: Principal, path: str, outcome: Ticket | Refused | Must) -> UsageRecord:
        if isinstance(outcome, Ticket):
            return UsageRecord(principal.key_id, path, self._loop.time, self.batches, outcome, self._note_end)
        if isinstance(outcome, Refused):
            raise GatewayError(429, outcome.code, outcome.message, headers=outcome.headers)
        raise AssertionError("the store must be asked first")

    def forget(self, keys: Iterable[str]) -> None:
        self._limits.forget(keys)

    def headers(self, usage: UsageRecord) -> list[tuple[bytes, bytes]]:
        """The fields of an answer with the rest of its key's limits."""
        if usage.use is None or usage.ticket is None:
            return []
        fields = usage.use.headers(self._loop.time(), self._limits.fraction)
        return [(name.encode(), value.encode()) for name, value in fields.items()]

    def _note_end(self, key: str) -> None:
        if self._limits.is_short(key):
            self._wake.set()  # other gateways may wait for what is free, or must know of what is owed

    # Tasks

    async def _share(self) -> None:
        while True:
            this, self._next = self._next, self._loop.create_future()
            try:
                await self._exchange()
                if self._limits.away:
                    log.info("shares of keys' limits are fresh again")
                self._limits.away = False
            except _ERRORS as error:
                if not self._limits.away:
                    why = str(error) or type(error).__name__
                    log.warning("shares of keys' limits not refreshed, going on with this gateway's part", error=why)
                self._limits.away = True
            finally:
                this.set_result(None)
            await asyncio.sleep(SPACING_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _exchange(self) -> None:
        async with asyncio.timeout(_EXCHANGE_LIMIT_S):
            async with self._database.transaction() as connection:
                asks = self._limits.asks(self._loop.time())
                answer = await exchange_shares(connection, self._id, asks)
            self._limits.take_answer(asks, answer, self._loop.time())

    async def _hand_over(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                while await self._flush():
                    pass
            except _ERRORS as error:
                log.warning("usage not written, tried again", error=str(error) or type(error).__name__)

    async def _flush(self) -> bool:
        """Hands one batch over; False without one."""
        batch = self.batches.next()
        if batch is None:
            return False
        async with asyncio.timeout(_WRITE_LIMIT_S), self._database.transaction() as connection:
            await write_usage(connection, self._id, *batch)
        self.batches.taken()
        return True


def _day_left_s() -> float:
    return DAY_S - time.time() % DAY_S
