"""One agent's connection: outgoing messages, in order and bounded, and its end. Reads and writes no rows."""

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog
from aiohttp import ClientConnectionResetError, WSMsgType, web
from msgspec.structs import replace

from controller.decide.lost_history import ReportedTerm
from controller.hub.agent_messages import Doubts, MalformedMessageError, read_message
from controller.hub.worker_budget import MAX_UNSENT, Frames, WorkerBudget
from schemas.process_figures import ProcessFigures
from schemas.wire import (
    HIGHEST_PROTOCOL,
    AgentMessage,
    Command,
    ControllerMessage,
    ProcessReport,
    Rejected,
    ReportedGpu,
    Welcome,
    encode,
)

log = structlog.get_logger(__name__)

SEND_LIMIT_S: Final = 10.0
SILENCE_LIMIT_S: Final = 20.0  # an agent that answers pings but sends no messages for longer hangs
CLOSE_LIMIT_S: Final = 2.0
_ENGINE_SINCE: Final = 4  # of the placeholder of the simulated engine
_PROOFS_SINCE: Final = 5  # of `Welcome.proof`
# Agents of protocol 3 start the simulated engine by the name of its module.
_SIMULATED_ENGINE: Final = "{simulated_engine}"
_BY_MODULE: Final = ("{python}", "-m", "gpuward.agent.simulated_engine")
_DRIFT: Final = 2e-4  # seconds per second: two monotonic clocks drift apart by less


def for_agent(message: ControllerMessage, protocol: int) -> ControllerMessage:
    """The message with values that an agent of this protocol understands. `encode` leaves out newer fields."""
    if protocol >= _ENGINE_SINCE or not isinstance(message, Command) or message.start is None:
        return message
    argv = message.start.argv
    if argv[:1] != (_SIMULATED_ENGINE,):
        return message
    return replace(message, start=replace(message.start, argv=(*_BY_MODULE, *argv[1:])))


class Session:
    """An open connection after its hello.

    Attributes:
        name: of the worker, for logs.
        number: the session number, which fences every write of this connection.
        since: the database's time of the hello; commands sent before went over an older connection.
        offset_s: the time on our clock minus the time on the agent's (both monotonic); None while unknown.
        clean: the agent sent a goodbye, so it shuts down.
        ours: the controller ended it for its own reasons, which are unrelated to the agent.
        unanswered: ids of commands sent here and not answered, with the time of sending (monotonic).
        strays: processes without claims that were sent a stop, with the time of sending (monotonic).
        orphans: newest reports of processes that the ledger may have lost, until the leader has decided.
        memory_held: ended processes with an event that the driver has not freed their memory.
        doubts: the parts of the last message that were left out.
        gpus: as last written, so that an equal heartbeat costs no write; None: unreadable.
        gpus_error: the reason why they are unreadable, as last written.
        welcome: as last sent.
        prove: makes the proof that this agent received a term and session.
        takes_proxy_secrets: the agent accepts the next secret of its proxy before it is in use.
        unread: processes whose receipts cannot be read here, so that the ledger may have lost them.
        process: the latest figures of the agent's own process.
        held_until: it is not believed before this time (monotonic), and ends then; None: it is believed.
        credential_sent: the agent got a new credential, and must reconnect with it.
        disk_full: whether the condition of a full disk is written; None: not known yet.
        held_elsewhere: reported GPUs that belong to another worker; rechecked from `recheck_at` on.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse,
        transport: asyncio.BaseTransport | None,
        frames: Frames,
        *,
        worker_id: str,
        name: str,
        number: int,
        since: datetime,
        boot_id: str,
        protocol: int = HIGHEST_PROTOCOL,
        gpus: tuple[ReportedGpu, ...] | None,
    ) -> None:
        self.worker_id = worker_id
        self.name = name
        self.number = number
        self.since = since
        self.boot_id = boot_id
        self.protocol = protocol
        self.offset_s: float | None = None
        self.process: ProcessFigures | None = None
        self.disk_full: bool | None = None
        self._compared_s = 0.0
        self.clean = False
        self.ours = False
        self.unanswered: dict[int, float] = {}
        self.doubts = Doubts()
        self.strays: dict[tuple[str, int, int], float] = {}
        self.orphans: dict[tuple[str, int, int], ProcessReport] = {}
        self.memory_held: set[tuple[str, int, int]] = set()
        self.gpus = gpus
        self.gpus_error = ""
        self.held_elsewhere: frozenset[str] = frozenset()
        self.welcome: Welcome | None = None
        self.prove: Callable[[ReportedTerm], str] | None = None
        self.takes_proxy_secrets = False
        self.unread: frozenset[tuple[str, int, int]] = frozenset()
        self.held_until: float | None = None
        self.credential_sent = False
        self.recheck_at = 0.0
        self._socket = socket
        self._frames = frames
        self._transport = transport
        self._outgoing: deque[ControllerMessage] = deque()
        self._more = asyncio.Event()
        self._ending: Rejected | None = None
        self._over = False

    @property
    def budget(self) -> WorkerBudget:
        return self._frames.budget

    @property
    def open(self) -> bool:
        """Whether the connection is open, as far as known on this side."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def over(self) -> bool:
        """Whether the connection is ending, so that nothing more is sent."""
        return self._over or self._ending is not None

    def compare_clocks(self, received_s: float, sent_s: float | None) -> None:
        """Takes the times of one message, ours and the agent's. The least delayed message has the best offset."""
        if sent_s is None:
            return
        offset_s = received_s - sent_s
        if self.offset_s is not None:
            # The old offset ages, else an agent with a slow clock would date samples further and further back.
            drifted_s = _DRIFT * max(0.0, received_s - self._compared_s)
            offset_s = min(self.offset_s + drifted_s, offset_s)
        self.offset_s, self._compared_s = offset_s, received_s

    def send(self, message: ControllerMessage) -> bool:
        """Queues a message; returns False while the connection is ending. A full queue ends it."""
        if self.over:
            return False
        if len(self._outgoing) >= MAX_UNSENT:
            self.cut("the agent reads its messages too slowly; connect again")
            return False
        if isinstance(message, Command):
            self._announce_term(message.term)
        self._outgoing.append(message)
        self._more.set()
        return True

    def _announce_term(self, term: int) -> None:
        """Repeats the welcome before the first command of a later term, with the proof that the agent received it."""
        if self.welcome is None or self.prove is None or term <= self.welcome.term or self.protocol < _PROOFS_SINCE:
            return
        proof = self.prove(ReportedTerm(term, self.welcome.session))
        self.welcome = replace(self.welcome, term=term, proof=proof)
        self._outgoing.append(self.welcome)

    def cut(self, reason: str, *, final: bool = False, ours: bool = False) -> None:
        """Ends the connection and sends the reason. `final`: the agent must not reconnect."""
        if self.over:
            return
        log.info("agent connection cut", worker=self.name, session=self.number, reason=reason)
        self.ours = ours
        self._ending = Rejected(message=reason, final=final)
        self._outgoing.clear()
        self._more.set()

    def abort(self) -> None:
        """Drops the connection without a message."""
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()

    async def receive(self) -> AgentMessage | None:
        """The next message; None at the end of the connection.

        Raises:
            MalformedMessageError: the message violates the protocol.
        """
        try:
            async with asyncio.timeout(SILENCE_LIMIT_S):
                message = await self._frames.next()
        except TimeoutError:
            self.cut(f"no message arrived for {SILENCE_LIMIT_S:g} s")
            return None
        except ConnectionError:  # a ping could not be answered
            return None
        if message.type is WSMsgType.TEXT:
            self.doubts = Doubts()
            with self.budget.measured():
                return read_message(message.data, self.doubts)
        if message.type is WSMsgType.BINARY:
            raise MalformedMessageError("message: must be JSON text, got binary data")
        return None

    def finish(self) -> None:
        """Ends `write_all` after its current messages, since reading has ended."""
        self._over = True
        self._more.set()

    async def write_all(self) -> None:
        """Sends queued messages until the connection ends. It is the only writer of the socket."""
        try:
            while not self._over and self._ending is None:
                await self._more.wait()
                self._more.clear()
                while self._outgoing:
                    await self._write(self._outgoing.popleft())
            if self._ending is not None:
                await self._write(self._ending)
        except (TimeoutError, ConnectionError, ClientConnectionResetError, RuntimeError) as error:
            # aiohttp raises RuntimeError for a socket that is closing.
            log.info("agent connection lost while writing", worker=self.name, session=self.number, error=str(error))
        finally:
            self._over = True
            await close_socket(self._socket, self._transport)

    async def _write(self, message: ControllerMessage) -> None:
        async with asyncio.timeout(SEND_LIMIT_S):
            await self._socket.send_str(encode(for_agent(message, self.protocol), self.protocol))


async def close_socket(socket: web.WebSocketResponse, transport: asyncio.BaseTransport | None) -> None:
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await socket.close()
    except (TimeoutError, ConnectionError, ClientConnectionResetError, RuntimeError):
        # A peer that does not read would keep the unsent bytes, and so the connection, for ever.
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()
