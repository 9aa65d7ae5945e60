"""Keeps the agent connected: connects, serves a session until it is lost, and reconnects."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable
from typing import Final

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from agent.errors import CredentialReplacedError, RejectedError, UnreachableError
from agent.link.channel import Channel
from agent.link.context import LinkContext
from agent.link.handshake import connect
from agent.link.incoming import receive_all
from agent.link.send_queue import SendQueueFullError
from agent.tasks import wait_first
from schemas.process_figures import read_figures
from schemas.wire import Goodbye, Heartbeat, InventoryChanged, Samples, Welcome

BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MAX_S: Final = 10.0
_SHORT_SESSION_S: Final = 5.0
_FAILURES_KEPT: Final = 64
_PING_S: Final = 3.0
_PING_TICK_S: Final = 0.25

log = structlog.get_logger()


class Link:
    """Owns the one connection. `on_ready` is called once, at the first welcome."""

    def __init__(self, context: LinkContext, on_ready: Callable[[], None] | None = None) -> None:
        self._context = context
        self._on_ready = on_ready
        self._channel: Channel | None = None
        self._acknowledged = asyncio.Event()
        self._failures: set[str] = set()
        self._leaving = False
        self._rng = random.Random()  # noqa: S311 - spreads reconnects, keeps no secret
        self._backoff = wait_random_exponential(multiplier=BACKOFF_FIRST_S, max=BACKOFF_MAX_S)

    async def run(self) -> None:
        """Runs until cancelled. Raises RefusedError if the controller refuses this agent permanently."""
        loop = asyncio.get_running_loop()
        while True:
            channel, welcome = await self._connect()
            started_s = loop.time()
            try:
                await self._serve(channel, welcome)
            except CredentialReplacedError:
                log.info("credential replaced, connecting again", worker=self._context.name)
            except (UnreachableError, SendQueueFullError) as error:
                log.warning("connection lost", worker=self._context.name, error=str(error))
            finally:
                self._channel = None
                self._context.heartbeat.connected = False
                await channel.close()
            short = loop.time() - started_s < _SHORT_SESSION_S
            await asyncio.sleep(
                self._rng.uniform(BACKOFF_FIRST_S, 1.0) if short else self._rng.uniform(0, BACKOFF_FIRST_S)
            )

    async def reconnect(self, why: str) -> None:
        """Ends the present connection, so that the next hello reports a change."""
        if self._channel is not None:
            log.info("connecting again", worker=self._context.name, reason=why)
            await self._channel.close()

    async def flush(self, limit_s: float) -> None:
        """Waits until the controller has acknowledged all ended processes; returns early without a connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._channel is not None and any(not r.alive for r in self._context.journal.unacknowledged()):
                    self._acknowledged.clear()
                    await self._acknowledged.wait()

    async def leave(self) -> None:
        """Announces the clean shutdown, now and on each later connection. Reports continue."""
        self._leaving = True
        if self._channel is not None:
            await self._send_goodbye(self._channel)

    async def goodbye(self) -> None:
        """Ends the connection after an announced shutdown."""
        if self._channel is not None:
            await self._channel.close()

    async def _send_goodbye(self, channel: Channel) -> None:
        with contextlib.suppress(UnreachableError):
            await channel.send(Goodbye())

    async def _connect(self) -> tuple[Channel, Welcome]:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(UnreachableError),
            wait=self._wait_s,
            before_sleep=self._log_failure,
        )
        self._failures.clear()
        return await retrying(connect, self._context)

    def _wait_s(self, state: RetryCallState) -> float:
        """Seconds until the next attempt. A busy controller gives each agent its turn by `retry_after_s`."""
        error = None if state.outcome is None else state.outcome.exception()
        turn_s = error.retry_after_s if isinstance(error, UnreachableError) else 0.0
        return turn_s + self._rng.uniform(0, 1.0) if turn_s else float(self._backoff(state))

    def _log_failure(self, state: RetryCallState) -> None:
        """Logs each reason once, and chooses the next controller."""
        self._context.controllers.move_on()
        error = None if state.outcome is None else state.outcome.exception()
        if str(error) in self._failures:
            return
        if len(self._failures) < _FAILURES_KEPT:
            self._failures.add(str(error))
        what = "controller rejects this agent" if isinstance(error, RejectedError) else "controller unreachable"
        log.warning(what, worker=self._context.name, error=str(error))

    async def _serve(self, channel: Channel, welcome: Welcome) -> None:
        self._channel = channel
        self._context.heartbeat.connected = True
        log.info("connected", worker=welcome.worker, term=welcome.term, session=welcome.session)
        if self._on_ready is not None:
            self._on_ready()
            self._on_ready = None
        if self._leaving:
            await self._send_goodbye(channel)
        await _serve_session(self._context, channel, welcome, self._acknowledged.set)


async def _serve_session(context: LinkContext, channel: Channel, welcome: Welcome, on_ack: Callable[[], None]) -> None:
    """Serves a welcomed connection until it is lost. `on_ack` is called at each acknowledgement of reports.

    Raises:
        UnreachableError: the connection is lost.
        SendQueueFullError: the controller does not read.
        RefusedError: the controller refuses this agent permanently.
    """
    context.sampler.period_s = welcome.sample_s
    context.backlog.rewind()
    context.inventory.dismiss(welcome.dismissed)
    await wait_first(
        receive_all(context, channel, on_ack),
        _send_messages(context, channel),
        _send_samples(context, channel),
        _queue_heartbeats(context, welcome.heartbeat_s),
        _ping(context, channel),
    )


async def _send_messages(context: LinkContext, channel: Channel) -> None:
    while True:
        await channel.send(await context.send_queue.next())


async def _send_samples(context: LinkContext, channel: Channel) -> None:
    while True:
        periods = await context.backlog.next()
        await channel.send(Samples(sent_s=context.clock(), periods=periods))


async def _queue_heartbeats(context: LinkContext, period_s: float) -> None:
    for seq in itertools.count(1):
        await asyncio.sleep(period_s)
        inventory = await context.inventory.read()
        if context.inventory.mark_reported(inventory):
            context.send_queue.add(InventoryChanged(inventory=inventory))
        beat = Heartbeat(
            seq=seq,
            sent_s=context.clock(),
            gpus=inventory.gpus,
            gpus_error=inventory.gpus_error,
            process=read_figures(context.collections, context.settings.data_dir),
        )
        context.send_queue.add(beat)


async def _ping(context: LinkContext, channel: Channel) -> None:
    """Pings often enough for the process with the shortest fence."""
    waited_s = 0.0
    while True:
        await asyncio.sleep(_PING_TICK_S)
        waited_s += _PING_TICK_S
        if waited_s >= min(_PING_S, context.supervisor.shortest_fence_s / 4):
            await channel.ping()
            waited_s = 0.0
