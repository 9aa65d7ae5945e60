"""Admits agents: from the request to a registered session, by credential, protocol and hello."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import web

from controller.hub import agreement, handshake
from controller.hub.agent_messages import MalformedMessageError
from controller.hub.agreement import NoCommonProtocolError
from controller.hub.handshake import HandshakeRefusedError, HandshakeResult, refuse
from controller.hub.hello_queue import HelloQueue
from controller.hub.join import refusal
from controller.hub.lost_history import is_ahead, raise_term
from controller.hub.message_handler import NO_DATABASE
from controller.hub.proxy_address import AdvertiseRefusedError, HostTrust, ProxyNames, proxy_address
from controller.hub.session import CLOSE_LIMIT_S, Session
from controller.hub.worker_budget import ENTRY_S, Frames, WorkerBudget, WorkerBudgets
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Database
from controller.store.core.events import acting
from controller.store.workers import sessions
from controller.store.workers.sessions import Identity, WorkerGoneError
from http1.daemon.log_limit import LogLimit
from schemas.wire import MAX_MESSAGE_BYTES, Hello, Protocols

log = structlog.get_logger(__name__)

PING_S: Final = 10.0
TURN_LIMIT_S: Final = 30.0  # for a hello, from its arrival until it is written
IDENTIFY_LIMIT_S: Final = 20.0
_IDENTIFIED_AT_ONCE: Final = 512
_CROWDED: Final = "too many agents connect at once; connect again"
_DEAR: Final = "this worker's connections and messages take too much of the controller's time; connect again"
_DELETED: Final = "the worker is deleted; join again with a token for its name: gpuward join-token create --name NAME"
_UNKNOWN: Final = "the worker's credential is unknown to this controller; join again with a new token"


class Admission:
    """Admits or refuses agents.

    `register` makes a session the worker's, or returns the reason for a refusal. `welcome` queues the first messages of
    a registered session.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        instance_id: str,
        register: Callable[[Session], str | None],
        welcome: Callable[[Session, Identity, Hello, HandshakeResult], None],
        spoken: Protocols,
        trust: HostTrust,
        keys: SecretKeys = NO_KEYS,
    ) -> None:
        self._database = database
        self._clock = clock
        self._register = register
        self._welcome = welcome
        self._spoken = spoken
        self._trust = trust
        self._names = ProxyNames()
        self._closing = False
        self._budgets = WorkerBudgets()
        self._keys = keys
        self._identification = Identification(database, keys)
        self._queue = HelloQueue(clock.monotonic)
        self._refused_logged = LogLimit()
        self._log = log.bind(controller=instance_id)

    @property
    def open_for_s(self) -> float:
        """Seconds since an agent was last refused because too many came at once."""
        return self._queue.open_for_s

    def close(self) -> None:
        self._closing = True
        self._names.close()

    async def admit(self, request: web.Request) -> tuple[web.StreamResponse, Session | None]:
        """Admits or refuses one agent. Returns the answer to its request, and its session; None if it is refused."""
        credential = handshake.bearer(request)
        if credential is None:
            message = "send the worker's credential: Authorization: Bearer CREDENTIAL"
            return refusal(401, "unauthenticated", message), None
        socket = web.WebSocketResponse(
            heartbeat=PING_S,
            timeout=CLOSE_LIMIT_S,
            max_msg_size=MAX_MESSAGE_BYTES,
            compress=False,
            autoping=False,  # see Frames
            protocols=agreement.subprotocols(agreement.offered_by(request), self._spoken),
        )
        try:
            identity = await self._identification.identify(credential)
            if identity is None:  # strangers get no WebSocket; an agent takes a 401 as a final rejection
                self._log_refusal(request, _UNKNOWN)
                return refusal(401, "unauthenticated", _UNKNOWN), None
            if identity.deleted:
                await socket.prepare(request)
                raise HandshakeRefusedError(_DELETED, final=True)  # noqa: TRY301 - answered as other refusals are
            budget = self._budgets.of(identity.id)
            if (busy := self._busy(request, budget)) is not None:
                return busy, None
            return socket, await self._handshake(request, socket, identity, budget)
        except HandshakeRefusedError as error:
            self._log_refusal(request, str(error))
            await refuse(request, socket, str(error), final=error.final)
        except DATABASE_ERRORS as error:
            if (more := self._refused_logged.admit("no database")) is not None:
                why = str(error) or type(error).__name__
                self._log.warning("agent refused without a database", error=why, more_before=more)
            if not socket.prepared:
                return refusal(503, "database_unavailable", NO_DATABASE, retry_after_s=1.0), None
            await refuse(request, socket, NO_DATABASE)
        return socket, None

    def _busy(self, request: web.Request, budget: WorkerBudget) -> web.Response | None:
        """The refusal of an agent that shall retry; None: it can be admitted."""
        if self._closing:
            return refusal(503, "busy", _CROWDED, retry_after_s=1.0)
        if (owed_s := budget.owed_s) or budget.crowded:
            self._log_refusal(request, _DEAR)
            return refusal(503, "busy", _DEAR, retry_after_s=owed_s)
        if self._queue.room <= 0:
            return refusal(503, "busy", _CROWDED, retry_after_s=self._queue.later_s())
        return None

    def _log_refusal(self, request: web.Request, why: str) -> None:
        if (more := self._refused_logged.admit(f"{request.remote} {why}")) is not None:
            self._log.info("handshake refused", peer=request.remote, reason=why, more_before=more)

    async def _handshake(
        self, request: web.Request, socket: web.WebSocketResponse, identity: Identity, budget: WorkerBudget
    ) -> Session:
        """Turns an open socket into a registered session.

        Raises:
            HandshakeRefusedError: with the reason.
        """
        try:
            with budget.handshake(), self._queue.entered():
                await socket.prepare(request)
                offered = agreement.offered_by(request)
                agreement.check_offer(offered, self._spoken)
                frames = Frames(socket, budget)
                hello = await handshake.receive_hello(frames, offered, self._spoken)
                received_s = self._clock.monotonic()
                entries = len(hello.inventory.gpus or ()) + len(hello.processes) + len(hello.receipts)
                budget.charge(ENTRY_S * entries)
                with acting(f"agent:{identity.name}"):
                    accepted = await self._write(identity, hello, request.remote)
        except NoCommonProtocolError as error:
            await agreement.record_refusal(self._database, identity, str(error))
            raise HandshakeRefusedError(str(error)) from error
        except AdvertiseRefusedError as error:
            await agreement.record_refusal(self._database, identity, str(error), agreement.ADVERTISE_REFUSED)
            raise HandshakeRefusedError(str(error)) from error
        except MalformedMessageError as error:
            await handshake.record_malformed(self._database, identity.id, identity.name, error)
            raise HandshakeRefusedError(str(error)) from error
        except WorkerGoneError as error:
            raise HandshakeRefusedError(_DELETED, final=True) from error
        session = Session(
            socket,
            request.transport,
            frames,
            worker_id=identity.id,
            name=identity.name,
            number=accepted.session,
            since=accepted.at,
            boot_id=hello.boot_id,
            protocol=hello.protocol,
            gpus=hello.inventory.gpus,
        )
        session.compare_clocks(received_s, hello.sent_s)
        session.held_elsewhere = accepted.held_elsewhere
        session.gpus_error = hello.inventory.gpus_error
        session.takes_proxy_secrets = hello.takes_proxy_secrets
        session.unread = accepted.unread
        if accepted.held_for_s:
            session.held_until = received_s + accepted.held_for_s
        if (refused := self._register(session)) is not None:
            raise HandshakeRefusedError(refused)
        self._welcome(session, identity, hello, accepted)
        self._log.info("agent connected", worker=identity.name, session=session.number, peer=request.remote)
        return session

    async def _write(self, identity: Identity, hello: Hello, peer: str | None) -> HandshakeResult:
        advertised = proxy_address(hello, peer)
        addresses = await self._names.resolve(advertised.rpartition(":")[0])  # before the turn, which it would prolong
        async with asyncio.timeout(TURN_LIMIT_S), self._queue.turn():
            if is_ahead(identity, hello):
                await raise_term(self._database, identity, hello)
            return await handshake.accept(
                self._database, identity, hello, peer, addresses=addresses, trust=self._trust, keys=self._keys
            )


@dataclass(eq=False, slots=True)
class _Lookup:
    digest: bytes
    done: bool = False
    identity: Identity | None = None


class Identification:
    """Identifies agents in batches over one of the database's connections, so that strangers cannot use up the rest."""

    def __init__(self, database: Database, keys: SecretKeys = NO_KEYS) -> None:
        self._database = database
        self._keys = keys
        self._waiting: deque[_Lookup] = deque()
        self._turn = asyncio.Lock()

    async def identify(self, credential: str) -> Identity | None:
        """The worker of the credential, deleted or not; None for an unknown credential."""
        lookup = _Lookup(hashlib.sha256(credential.encode("utf-8", "surrogateescape")).digest())
        self._waiting.append(lookup)
        try:
            async with asyncio.timeout(IDENTIFY_LIMIT_S), self._turn:
                while not lookup.done:
                    await self._look_up_batch()
        finally:
            if not lookup.done and lookup in self._waiting:
                self._waiting.remove(lookup)
        return lookup.identity

    async def _look_up_batch(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(_IDENTIFIED_AT_ONCE, len(self._waiting)))]
        try:
            async with self._database.connection() as connection:
                identities = await sessions.find_by_credentials(connection, {one.digest for one in batch}, self._keys)
        except BaseException:
            self._waiting.extendleft(reversed(batch))  # each lookup has its own time limit
            raise
        for lookup in batch:
            lookup.identity, lookup.done = identities.get(lookup.digest), True
