"""The connection to the controller: joins, dials, says hello, then carries orders in and reports out; dials again."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any, Final, NoReturn

import aiohttp
import orjson
import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from agent.channel import Channel, Garbled, UnauthorizedError, limit
from agent.clock import Clock
from agent.contact import Contact
from agent.errors import RefusedError, UnreachableError
from agent.inventory import InventoryWatch
from agent.joining import join, read_token, token_digest
from agent.journal import Journal
from agent.outbox import Outbox, OutboxFullError
from agent.processes.supervisor import Supervisor
from agent.processes.waiting import first_of
from agent.sampling.backlog import Backlog
from agent.sampling.sampler import Sampler
from agent.settings import AgentSettings
from schemas.version import __version__
from schemas.wire import (
    Command,
    CommandResult,
    Goodbye,
    Heartbeat,
    Hello,
    InventoryChanged,
    JoinRequest,
    Rejected,
    ReportAck,
    Samples,
    SamplesAck,
    Welcome,
)

BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MAX_S: Final = 10.0
_WELCOME_LIMIT_S: Final = 15.0
_PING_S: Final = 3.0
_PING_TICK_S: Final = 0.25
_SILENCE_LIMIT_S: Final = 10.0  # three pings unanswered: the other side is dead or the way is
_SHORT_SESSION_S: Final = 5.0

log = structlog.get_logger()


class Link:
    """Owns the one connection. Its messages go through `outbox`; orders go to the supervisor."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        name: str,
        boot_id: str,
        proxy_port: int,
        session: aiohttp.ClientSession,
        journal: Journal,
        outbox: Outbox,
        supervisor: Supervisor,
        inventory: InventoryWatch,
        sampler: Sampler,
        backlog: Backlog,
        clock: Clock,
        contact: Contact,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._name = name
        self._boot_id = boot_id
        self._proxy_port = proxy_port
        self._session = session
        self._journal = journal
        self._outbox = outbox
        self._supervisor = supervisor
        self._inventory = inventory
        self._sampler = sampler
        self._backlog = backlog
        self._clock = clock
        self._contact = contact
        self._on_ready = on_ready
        self._channel: Channel | None = None
        self._acknowledged = asyncio.Event()
        self._rng = random.Random()  # noqa: S311 - spreads reconnects, keeps no secret

    async def run(self) -> None:
        """Connected or connecting, until cancelled.

        Raises:
            RefusedError: the controller will not have this agent; dialling again is no use.
        """
        loop = asyncio.get_running_loop()
        while True:
            channel, welcome = await self._dial_until_welcome()
            began_s = loop.time()
            try:
                await self._serve(channel, welcome)
            except (UnreachableError, OutboxFullError) as error:
                log.warning("connection lost", worker=self._name, error=str(error))
            finally:
                self._channel = None
                self._contact.connected = False
                await channel.close()
            short = loop.time() - began_s < _SHORT_SESSION_S
            await asyncio.sleep(
                self._rng.uniform(BACKOFF_FIRST_S, 1.0) if short else self._rng.uniform(0, BACKOFF_FIRST_S)
            )

    async def settle(self, limit_s: float) -> None:
        """Waits until the controller has acknowledged all ends, while a connection lives, or until the limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._channel is not None and any(not r.alive for r in self._journal.unacknowledged()):
                    self._acknowledged.clear()
                    await self._acknowledged.wait()

    async def goodbye(self) -> None:
        """Says that the end is on purpose, if there is anyone to say it to."""
        channel = self._channel
        if channel is not None:
            with contextlib.suppress(UnreachableError):
                await channel.send(Goodbye())
            await channel.close()

    async def _dial_until_welcome(self) -> tuple[Channel, Welcome]:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(UnreachableError),
            wait=wait_random_exponential(multiplier=BACKOFF_FIRST_S, max=BACKOFF_MAX_S),
            before_sleep=self._not_reached,
        )
        async for attempt in retrying:
            with attempt:
                return await self._dial()
        raise AssertionError("it is retried for ever")

    def _not_reached(self, state: RetryCallState) -> None:
        """Says it at the first failure; the later ones are the same news."""
        if state.attempt_number == 1 and state.outcome is not None:
            log.warning("controller not reached", worker=self._name, error=str(state.outcome.exception()))

    async def _dial(self) -> tuple[Channel, Welcome]:
        if self._journal.facts.credential is None:
            await self._join()
        credential = self._journal.facts.credential or ""
        try:
            channel = await Channel.dial(self._session, self._settings.controller_url, credential, self._contact)
        except UnauthorizedError as error:
            self._disowned(str(error))
        try:
            return channel, await self._greet(channel)
        except BaseException:
            await channel.close()
            raise

    async def _join(self) -> None:
        token = read_token(self._settings)
        if token is None:
            raise RefusedError("this worker has not joined yet: give it a token with --join-token")
        request = JoinRequest(token=token, name=self._name, agent_version=__version__)
        answer = await join(self._session, self._settings.controller_url, request)
        self._journal.remember(
            worker=answer.worker,
            worker_uid=answer.worker_uid,
            credential=answer.credential,
            token_digest=token_digest(request.token),
            highest_term=0,
        )
        log.info("joined", worker=answer.worker, controller=self._settings.controller_url)

    def _disowned(self, why: str) -> NoReturn:
        """The controller knows this credential no more. A new token means: join again; else it is the end.

        Raises:
            UnreachableError: to be dialled again, with the new token.
            RefusedError: there is none.
        """
        token = None
        with contextlib.suppress(RefusedError):  # a file that was removed after the join is no new token
            token = read_token(self._settings)
        if token is not None and token_digest(token) != self._journal.facts.token_digest:
            self._journal.remember(credential=None, worker_uid=None, proxy_secret=None)
            raise UnreachableError(f"{why}; joining again with the new token")
        raise RefusedError(
            f"{self._settings.controller_url}: {why}. If this worker was deleted, join again with a new --join-token"
        )

    async def _greet(self, channel: Channel) -> Welcome:
        inventory = await self._inventory.whole()
        self._inventory.tell(inventory)
        self._outbox.clear()
        hello = Hello(
            agent_version=__version__,
            boot_id=self._boot_id,
            highest_term=self._journal.facts.highest_term,
            report_seq=self._journal.facts.report_seq,
            advertise=self._settings.advertised(self._proxy_port),
            proxy_port=self._proxy_port,
            sent_s=self._clock(),
            inventory=inventory,
            processes=tuple(record.report() for record in self._journal.unacknowledged()),
        )
        await channel.send(hello)
        answer = None
        async with limit(_WELCOME_LIMIT_S, "no welcome"):
            while answer is None:
                answer = await self._next(channel, _WELCOME_LIMIT_S)
        if isinstance(answer, Rejected):
            self._rejected(answer)
        if not isinstance(answer, Welcome):
            raise UnreachableError("the controller's first message is no welcome")
        if answer.term < self._journal.facts.highest_term:
            raise UnreachableError(f"the controller leads in term {answer.term}, which is over")
        self._journal.remember(worker=answer.worker, highest_term=answer.term, proxy_secret=answer.proxy_secret)
        return answer

    async def _serve(self, channel: Channel, welcome: Welcome) -> None:
        self._channel = channel
        self._contact.connected = True
        log.info("connected", worker=welcome.worker, term=welcome.term, session=welcome.session)
        if self._on_ready is not None:
            self._on_ready()
            self._on_ready = None
        self._sampler.period_s = welcome.sample_s
        self._backlog.rewind()
        await first_of(
            self._receive(channel),
            self._send_all(channel),
            self._send_samples(channel),
            self._beat(welcome.heartbeat_s),
            self._ping(channel),
        )

    async def _send_all(self, channel: Channel) -> None:
        while True:
            await channel.send(await self._outbox.next())

    async def _send_samples(self, channel: Channel) -> None:
        while True:
            periods = await self._backlog.next()
            await channel.send(Samples(sent_s=self._clock(), periods=periods))

    async def _beat(self, every_s: float) -> None:
        seq = 0
        while True:
            await asyncio.sleep(every_s)
            inventory = await self._inventory.whole()
            if self._inventory.tell(inventory):
                self._outbox.say(InventoryChanged(inventory=inventory))
            seq += 1
            self._outbox.say(Heartbeat(seq=seq, sent_s=self._clock(), gpus=inventory.gpus))

    async def _ping(self, channel: Channel) -> None:
        """Makes the controller say something, often enough for the process that bears its silence the shortest."""
        waited_s = 0.0
        while True:
            await asyncio.sleep(_PING_TICK_S)
            waited_s += _PING_TICK_S
            if waited_s >= min(_PING_S, self._supervisor.shortest_fence_s / 4):
                await channel.ping()
                waited_s = 0.0

    async def _receive(self, channel: Channel) -> None:
        while True:
            match await self._next(channel, _SILENCE_LIMIT_S):
                case Command() as command:
                    self._outbox.say(self._supervisor.handle(command))
                case ReportAck(seq=seq):
                    self._supervisor.acknowledged(seq)
                    self._acknowledged.set()
                case SamplesAck(seq=seq):
                    self._backlog.acknowledge(seq)
                case Rejected() as rejected:
                    self._rejected(rejected)
                case _:
                    pass  # a sign of life, or a welcome that was said already
            await asyncio.sleep(0)  # a burst that is already buffered must not hold the loop

    async def _next(self, channel: Channel, limit_s: float) -> Any:
        """The next message. A command that cannot be read is refused by its number, so that nobody waits for it."""
        try:
            return await channel.receive(limit_s)
        except Garbled as garbled:
            log.warning("message not understood", worker=self._name, error=str(garbled))
            number = _command_id(garbled.data)
            if number is not None:
                why = str(garbled)
                self._outbox.say(CommandResult(command_id=number, outcome="refused", code="bad_command", message=why))
            return None

    def _rejected(self, message: Rejected) -> NoReturn:
        if message.final:
            self._disowned(message.message)
        raise UnreachableError(f"rejected: {message.message}")


def _command_id(data: str | bytes) -> int | None:
    try:
        body = orjson.loads(data)
    except ValueError:
        return None
    number = body.get("command_id") if isinstance(body, dict) else None
    return number if isinstance(number, int) else None
