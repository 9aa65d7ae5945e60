"""The connection to the controller: joins, dials, says hello, then carries orders in and reports out; dials again."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import orjson
import structlog
from pydantic import ValidationError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from gpuward import __version__
from gpuward.agent.contact import Contact
from gpuward.agent.errors import RefusedError
from gpuward.agent.inventory import InventoryWatch
from gpuward.agent.joining import UnreachableError, join, token_digest
from gpuward.agent.journal import Journal
from gpuward.agent.outbox import Outbox, OutboxFullError
from gpuward.agent.processes.supervisor import Supervisor
from gpuward.agent.processes.waiting import first_of
from gpuward.agent.settings import AgentSettings
from gpuward.schemas.wire import (
    CONNECT_PATH,
    MAX_MESSAGE_BYTES,
    Command,
    CommandResult,
    Goodbye,
    Heartbeat,
    Hello,
    InventoryChanged,
    JoinRequest,
    Rejected,
    ReportAck,
    Welcome,
    controller_message,
)

BACKOFF_FIRST_S: Final = 0.2
BACKOFF_MAX_S: Final = 10.0
_CONNECT_LIMIT_S: Final = 10.0
_WELCOME_LIMIT_S: Final = 15.0
_PING_S: Final = 3.0
_PING_TICK_S: Final = 0.25
_SILENCE_LIMIT_S: Final = 10.0  # three pings unanswered: the other side is dead or the way is
_SEND_LIMIT_S: Final = 10.0
_SHORT_SESSION_S: Final = 5.0
_UNAUTHORIZED: Final = (401, 403)

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
        self._contact = contact
        self._on_ready = on_ready
        self._ws: aiohttp.ClientWebSocketResponse | None = None
        self._acknowledged = asyncio.Event()
        self._rng = random.Random()  # noqa: S311 - spreads reconnects, keeps no secret

    async def run(self) -> None:
        """Connected or connecting, until cancelled.

        Raises:
            RefusedError: the controller will not have this agent; dialling again is no use.
        """
        loop = asyncio.get_running_loop()
        while True:
            ws, welcome = await self._dial_until_welcome()
            began_s = loop.time()
            try:
                await self._serve(ws, welcome)
            except (UnreachableError, OutboxFullError) as error:
                log.warning("connection lost", worker=self._name, error=str(error))
            finally:
                self._ws = None
                await _close(ws)
            short = loop.time() - began_s < _SHORT_SESSION_S
            await asyncio.sleep(
                self._rng.uniform(BACKOFF_FIRST_S, 1.0) if short else self._rng.uniform(0, BACKOFF_FIRST_S)
            )

    async def settle(self, limit_s: float) -> None:
        """Waits until the controller has acknowledged all ends, while a connection lives, or until the limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._ws is not None and any(not r.alive for r in self._journal.unacknowledged()):
                    self._acknowledged.clear()
                    await self._acknowledged.wait()

    async def goodbye(self) -> None:
        """Says that the end is on purpose, if there is anyone to say it to."""
        ws = self._ws
        if ws is not None:
            with contextlib.suppress(UnreachableError):
                await _send(ws, Goodbye())
            await _close(ws)

    async def _dial_until_welcome(self) -> tuple[aiohttp.ClientWebSocketResponse, Welcome]:
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

    async def _dial(self) -> tuple[aiohttp.ClientWebSocketResponse, Welcome]:
        if self._journal.facts.credential is None:
            await self._join()
        try:
            async with asyncio.timeout(_CONNECT_LIMIT_S):
                ws = await self._session.ws_connect(
                    self._settings.controller_url + CONNECT_PATH,
                    headers={"Authorization": f"Bearer {self._journal.facts.credential}"},
                    max_msg_size=MAX_MESSAGE_BYTES,
                    autoping=False,
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in _UNAUTHORIZED:
                self._disowned(f"the credential is refused ({error.status})")
            raise UnreachableError(f"the controller answers {error.status}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnreachableError(repr(error)) from error
        try:
            return ws, await self._greet(ws)
        except BaseException:
            await _close(ws)
            raise

    async def _join(self) -> None:
        token = self._settings.join_token
        if token is None:
            raise RefusedError("this worker has not joined yet: give it a token with --join-token")
        request = JoinRequest(token=token.get_secret_value(), name=self._name, agent_version=__version__)
        answer = await join(self._session, self._settings.controller_url, request)
        self._journal.remember(
            worker=answer.worker,
            worker_uid=answer.worker_uid,
            credential=answer.credential,
            token_digest=token_digest(request.token),
            highest_term=0,
        )
        log.info("joined", worker=answer.worker, controller=self._settings.controller_url)

    def _disowned(self, why: str) -> None:
        """The controller knows this credential no more. A new token means: join again; else it is the end.

        Raises:
            UnreachableError: to be dialled again, with the new token.
            RefusedError: there is none.
        """
        token = self._settings.join_token
        if token is not None and token_digest(token.get_secret_value()) != self._journal.facts.token_digest:
            self._journal.remember(credential=None, worker_uid=None, proxy_secret=None)
            raise UnreachableError(f"{why}; joining again with the new token")
        raise RefusedError(
            f"{self._settings.controller_url}: {why}. If this worker was deleted, join again with a new --join-token"
        )

    async def _greet(self, ws: aiohttp.ClientWebSocketResponse) -> Welcome:
        inventory = await self._inventory.whole()
        self._inventory.tell(inventory)
        self._outbox.clear()
        hello = Hello(
            agent_version=__version__,
            boot_id=self._boot_id,
            highest_term=self._journal.facts.highest_term,
            advertise=self._settings.advertised(self._proxy_port),
            proxy_port=self._proxy_port,
            inventory=inventory,
            processes=tuple(record.report() for record in self._journal.unacknowledged()),
        )
        await _send(ws, hello)
        answer = None
        async with _limit(_WELCOME_LIMIT_S, "no welcome"):
            while answer is None:
                answer = await self._receive_one(ws)
        if isinstance(answer, Rejected):
            self._rejected(answer)
        if not isinstance(answer, Welcome):
            raise UnreachableError("the controller's first message is no welcome")
        if answer.term < self._journal.facts.highest_term:
            raise UnreachableError(f"the controller leads in term {answer.term}, which is over")
        self._journal.remember(worker=answer.worker, highest_term=answer.term, proxy_secret=answer.proxy_secret)
        return answer

    async def _serve(self, ws: aiohttp.ClientWebSocketResponse, welcome: Welcome) -> None:
        self._ws = ws
        log.info("connected", worker=welcome.worker, term=welcome.term, session=welcome.session)
        if self._on_ready is not None:
            self._on_ready()
            self._on_ready = None
        await first_of(self._receive(ws), self._send_all(ws), self._beat(welcome.heartbeat_s), self._ping(ws))

    async def _send_all(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await _send(ws, await self._outbox.next())

    async def _beat(self, every_s: float) -> None:
        seq = 0
        while True:
            await asyncio.sleep(every_s)
            inventory = await self._inventory.whole()
            if self._inventory.tell(inventory):
                self._outbox.say(InventoryChanged(inventory=inventory))
            seq += 1
            self._outbox.say(Heartbeat(seq=seq, gpus=inventory.gpus))

    async def _ping(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        """Makes the controller say something, often enough for the process that bears its silence the shortest."""
        waited_s = 0.0
        while True:
            await asyncio.sleep(_PING_TICK_S)
            waited_s += _PING_TICK_S
            if waited_s >= min(_PING_S, self._supervisor.shortest_fence_s / 4):
                await _guarded(ws.ping())
                waited_s = 0.0

    async def _receive(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            async with _limit(_SILENCE_LIMIT_S, "the controller is silent"):
                message = await self._receive_one(ws)
            match message:
                case Command():
                    self._outbox.say(self._supervisor.handle(message))
                case ReportAck(seq=seq):
                    self._supervisor.acknowledged(seq)
                    self._acknowledged.set()
                case Rejected():
                    self._rejected(message)
                case _:
                    pass  # dealt with where it was read, or a welcome that was said already
            await asyncio.sleep(0)  # a burst that is already buffered must not hold the loop

    async def _receive_one(self, ws: aiohttp.ClientWebSocketResponse) -> Any:
        """The next message of the controller; None for what was dealt with here."""
        frame = await ws.receive()
        if frame.type in (aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG):
            self._contact.heard()
            if frame.type is aiohttp.WSMsgType.PING:
                await _guarded(ws.pong(frame.data))
            return None
        if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            raise UnreachableError("the controller closed the connection")
        self._contact.heard()
        try:
            return controller_message.validate_json(frame.data)
        except ValidationError as error:
            self._not_understood(frame.data, error)
            return None

    def _not_understood(self, data: str | bytes, error: ValidationError) -> None:
        """A command that cannot be read is refused by its number, so that it does not wait for ever."""
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        log.warning("message not understood", worker=self._name, error=why)
        try:
            body = orjson.loads(data)
        except ValueError:
            return
        number = body.get("command_id") if isinstance(body, dict) else None
        if isinstance(number, int):
            self._outbox.say(CommandResult(command_id=number, outcome="refused", code="bad_command", message=why))

    def _rejected(self, message: Rejected) -> None:
        if message.final:
            self._disowned(message.message)
        raise UnreachableError(f"rejected: {message.message}")


async def _send(ws: aiohttp.ClientWebSocketResponse, message: Any) -> None:
    await _guarded(ws.send_str(message.model_dump_json()))


async def _guarded(sending: Any) -> None:
    async with _limit(_SEND_LIMIT_S, "the controller takes nothing"):
        try:
            await sending
        except (aiohttp.ClientError, ConnectionError, RuntimeError) as error:  # RuntimeError: it is closing
            raise UnreachableError(repr(error)) from error


@contextlib.asynccontextmanager
async def _limit(seconds: float, why: str) -> Any:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise UnreachableError(why) from error


async def _close(ws: aiohttp.ClientWebSocketResponse) -> None:
    with contextlib.suppress(TimeoutError, aiohttp.ClientError, ConnectionError):
        async with asyncio.timeout(1.0):
            await ws.close()
