"""A connection's own messages: hello and welcome, heartbeats, rejection and goodbye."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from schemas.process_figures import ProcessFigures
from schemas.wire.base import FiniteWire, Since, Wire
from schemas.wire.inventory import DeviceFacts, Inventory
from schemas.wire.protocol import HIGHEST_PROTOCOL
from schemas.wire.reports import ProcessReport
from schemas.wire.samples import SAMPLE_S

HEARTBEAT_S: Final = 5.0


class Told(Wire):
    """The latest term and session that a welcome has named to this agent, and the controller's proof of that."""

    term: int
    session: int
    proof: Annotated[str, Field(max_length=64)]


class Hello(Wire):
    """The first message of a connection: the agent's whole state. `sent_s` is on the clock of its samples.

    `receipts`: the controller's own words of what it had started, for a ledger that has lost commits.
    """

    type: Literal["hello"] = "hello"
    protocol: int = HIGHEST_PROTOCOL  # of this connection
    agent_version: str
    boot_id: str
    highest_term: int = 0
    highest_session: Annotated[int, Since(5)] = 0  # that a welcome has named, of this worker
    told: Annotated[Told | None, Since(5)] = None  # after a loss of commits the controller believes this alone
    takes_proxy_secrets: Annotated[bool, Since(5)] = False  # it can accept the next one before it is in use
    report_seq: int | None = None  # the newest report's number: it precedes all reports with higher numbers
    advertise: str | None = None  # HOST:PORT of the proxy; host None: the address that the agent dials from
    proxy_port: int
    sent_s: float | None = None
    certificate: Annotated[str, Since(5)] = ""  # SHA-256 of the proxy's, in hexadecimal digits; empty: it speaks no TLS
    inventory: Inventory
    processes: tuple[ProcessReport, ...]
    receipts: Annotated[tuple[str, ...], Since(5)] = ()  # of the start orders of those that live


class Welcome(FiniteWire):
    """The answer to hello: the worker's name, the session, and the intervals.

    It is repeated when `dismissed` changes, and before the first command of a later term.
    `dismissed`: how often an operator has dismissed what the driver had reported of a GPU, by UUID.
    `proof`: that this worker was told this term and session, in hexadecimal digits. The agent shows it in later hellos.
    """

    type: Literal["welcome"] = "welcome"
    worker: str
    session: int
    term: int
    heartbeat_s: float = HEARTBEAT_S
    sample_s: float = SAMPLE_S
    proxy_secret: str
    dismissed: Annotated[dict[str, int], Since(4)] = {}
    proof: Annotated[str, Field(max_length=64), Since(5)] = ""


class NewCredential(Wire):
    """The credential with which the agent connects from now on. The present one is valid until it has done so.

    `proxy_secret`: that of its proxy from then on, which it accepts at once beside the present one; empty: it stays.
    """

    since: ClassVar[int] = 5
    type: Literal["credential"] = "credential"
    credential: Annotated[str, Field(min_length=1, max_length=512)]
    proxy_secret: Annotated[str, Field(max_length=512), Since(5)] = ""


class Heartbeat(Wire):
    """Sent every `HEARTBEAT_S` with the readings. `gpus` None: they could not be read, which `gpus_error` explains.

    `sent_s` is as in hello.
    """

    type: Literal["heartbeat"] = "heartbeat"
    seq: int
    sent_s: float | None = None
    gpus: tuple[DeviceFacts, ...] | None
    gpus_error: Annotated[str, Since(4)] = ""
    process: Annotated[ProcessFigures | None, Since(4)] = None  # of the agent itself


class Goodbye(Wire):
    """A clean shutdown has begun. Reports may follow, then the connection ends on purpose.

    Agents of earlier versions send it last.
    """

    type: Literal["goodbye"] = "goodbye"


class Rejected(Wire):
    """The controller does not serve this connection. `final`: the agent must not dial again with this credential."""

    type: Literal["rejected"] = "rejected"
    message: str
    final: bool = False
