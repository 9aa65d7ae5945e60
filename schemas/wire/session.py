"""A connection's own messages: hello and welcome, heartbeats, rejection and goodbye."""

from typing import Annotated, ClassVar, Final

from msgspec import Meta

from schemas.process_figures import ProcessFigures
from schemas.wire.base import MAX_PROCESSES, AgentSeconds, BigInt, Counter, Since, Wire, WireName, WireText
from schemas.wire.inventory import Gpus, Inventory
from schemas.wire.protocol import HIGHEST_PROTOCOL
from schemas.wire.reports import ProcessReport
from schemas.wire.samples import SAMPLE_S

HEARTBEAT_S: Final = 5.0
_Receipt = Annotated[str, Meta(max_length=2**18)]  # 256 claims take a quarter of that


class AttestedTerm(Wire, frozen=True, kw_only=True):
    """The latest term and session of a welcome to this agent, with the controller's proof."""

    term: Counter
    session: Counter
    proof: Annotated[str, Meta(max_length=64)]


class Hello(Wire, frozen=True, kw_only=True, tag="hello"):
    """The first message of a connection: the agent's complete state. `sent_s` is on the clock of its samples.

    `receipts`: the controller's own records of its starts, for a ledger that has lost commits.
    """

    protocol: int = HIGHEST_PROTOCOL  # of this connection
    agent_version: WireName
    boot_id: WireName
    highest_term: Counter = 0
    highest_session: Annotated[Counter, Since(5)] = 0  # that a welcome has named, of this worker
    told: Annotated[AttestedTerm | None, Since(5)] = (
        None  # the only proof that the controller accepts after a loss of commits
    )
    takes_proxy_secrets: Annotated[bool, Since(5)] = False  # it can accept the next secret before it is in use
    report_seq: BigInt | None = None  # the newest report's number: it precedes all reports with higher numbers
    advertise: WireName | None = None  # HOST:PORT of the proxy; host None: the address from which the agent connects
    proxy_port: int
    sent_s: AgentSeconds | None = None
    # SHA-256 of the proxy's, in hexadecimal digits; empty: no TLS.
    certificate: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z"), Since(5)] = ""
    inventory: Inventory
    processes: Annotated[tuple[ProcessReport, ...], Meta(max_length=MAX_PROCESSES)]
    # Of the start orders of live processes.
    receipts: Annotated[tuple[_Receipt, ...], Meta(max_length=MAX_PROCESSES), Since(5)] = ()


class Welcome(Wire, frozen=True, kw_only=True, tag="welcome"):
    """The answer to hello: the worker's name, the session, and the intervals.

    It is repeated when `dismissed` changes, and before the first command of a later term.
    `dismissed`: number of dismissals by operators of the driver's reports about a GPU, by UUID.
    `proof`: the controller's, of this term and session for this worker, in hexadecimal digits, for later hellos.
    """

    worker: str
    session: int
    term: int
    heartbeat_s: float = HEARTBEAT_S
    sample_s: float = SAMPLE_S
    proxy_secret: str
    dismissed: Annotated[dict[str, int], Since(4)] = {}
    proof: Annotated[str, Meta(max_length=64), Since(5)] = ""


class NewCredential(Wire, frozen=True, kw_only=True, tag="credential"):
    """The agent's next credential. The present credential is valid until the agent has connected with it.

    `proxy_secret`: the next secret of its proxy, accepted at once in addition to the present secret; empty: none.
    """

    since: ClassVar[int] = 5
    credential: Annotated[str, Meta(min_length=1, max_length=512)]
    proxy_secret: Annotated[str, Meta(max_length=512), Since(5)] = ""


class Heartbeat(Wire, frozen=True, kw_only=True, tag="heartbeat"):
    """Sent every `HEARTBEAT_S` with the readings. `gpus` None: they could not be read; `gpus_error` has the reason.

    `sent_s` is as in hello.
    """

    seq: int
    sent_s: AgentSeconds | None = None
    gpus: Gpus | None
    gpus_error: Annotated[WireText, Since(4)] = ""
    process: Annotated[ProcessFigures | None, Since(4)] = None  # of the agent itself


class Goodbye(Wire, frozen=True, kw_only=True, tag="goodbye"):
    """A clean shutdown has started. Reports may follow, then the agent closes the connection.

    Agents of earlier versions send it last.
    """


class Rejected(Wire, frozen=True, kw_only=True, tag="rejected"):
    """The controller does not serve this connection. `final`: the agent must not connect again with this credential."""

    message: str
    final: bool = False
