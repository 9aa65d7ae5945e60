"""The input for the list of what needs an operator. Names are those of the API."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class TroubledWorker:
    """A worker that is not ready, or has a condition that does not hold."""

    name: str
    ready: bool  # without flags of operators
    state: str  # the phase, or `quarantined`
    reason: str  # a code; may be empty
    since: datetime | None  # its last message if it is silent; else the start of its phase
    conditions: Sequence[tuple[str, str, datetime | None]] = ()  # code, text and start of each that does not hold
    instances: int = 0  # number with claims there
    sample: Sequence[str] = ()  # the first of these instances


@dataclass(frozen=True, slots=True)
class TroubledInstance:
    """An instance that is pending, failed or failing."""

    id: str
    deployment: str
    phase: str
    since: datetime
    reason: str
    message: str  # if it is pending, also the cause that holds up its rollout
    failures: int = 0  # in a row
    failing_since: datetime | None = None  # first failure in the row, or first failed read of its model
    need_error: str = ""  # why the need of its model is unknown; empty: known, or being analyzed
    overdue: bool = False  # its process has been starting for longer than `start_timeout`, fetches excluded


@dataclass(frozen=True, slots=True)
class TroubledDeployment:
    """A deployment that the controller fails to process, or whose rollout has failed."""

    name: str
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class IdleInstance:
    """An instance that its policy finds idle."""

    id: str
    deployment: str
    policy: str
    action: str
    dry_run: bool
    message: str
    since: datetime


@dataclass(frozen=True, slots=True)
class SickGpu:
    """An unhealthy GPU. `instances`: that hold claims on it."""

    uuid: str
    worker: str
    index: int
    reason: str
    instances: int
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class ExpiringKey:
    """An API key that expires soon."""

    id: str
    name: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class CertificateState:
    """A certificate of this controller."""

    ends_at: datetime  # the end of the certificate in use
    warn_s: float  # how long before `ends_at` an operator should know
    authority: bool = False  # of the authority that agents and clients pin; else of the public port
    problem: str = ""  # why the files of a newer certificate are not usable; empty if they are


@dataclass(frozen=True, slots=True)
class SealingState:
    """How the secrets of agents' proxies and the key of receipts are stored."""

    plain: bool = False  # some of them are stored unencrypted, and this controller has no key
    waits_for: Sequence[str] = ()  # gateways that have not reported the key under which secrets will be sealed
    locked_out: Sequence[str] = ()  # gateways that lack the key under which secrets are sealed
    receipts_unreadable: bool = False  # this controller cannot open the key of receipts


@dataclass(frozen=True, slots=True)
class AttentionSnapshot:
    """Everything at one time."""

    at: datetime
    leader: bool = True
    leaderless_since: datetime | None = None  # last renewal of the lease
    violations: Sequence[str] = ()  # the broken rows of the ledger, as text
    workers: Sequence[TroubledWorker] = ()
    instances: Sequence[TroubledInstance] = ()
    deployments: Sequence[TroubledDeployment] = ()
    idle: Sequence[IdleInstance] = ()
    gpus: Sequence[SickGpu] = field(default=())
    unreadable_secrets: int = 0  # number of secrets that no key of this controller opens
    plain_secrets: int = 0  # number of secrets that are stored unencrypted
    sealing: SealingState = SealingState()
    keys: Sequence[ExpiringKey] = ()  # those that expire soon, in order of expiry
    certificates: Sequence[CertificateState] = ()
    database_full_since: datetime | None = None  # when this controller met a full disk of the database
    database_low: str = ""  # free space of that disk, as text; empty: enough, or unknown
