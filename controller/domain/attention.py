"""What is read to find out what needs an operator. Names are those of the API."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker that is not ready, or of which a condition does not hold.

    Attributes:
        ready: its phase, apart from what an operator has set.
        state: as in the API, but for what an operator has set: the phase, or `quarantined`.
        reason: a code; empty: none.
        since: when it was last heard of, where it is silent; else when its phase began.
        conditions: code, words and begin of each that does not hold.
        instances: how many hold claims there.
        sample: the first of them.
    """

    name: str
    ready: bool
    state: str
    reason: str
    since: datetime | None
    conditions: Sequence[tuple[str, str, datetime | None]] = ()
    instances: int = 0
    sample: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TroubledInstance:
    """An instance that is pending, failed or failing.

    Attributes:
        message: its own; of one that is pending also what holds up its rollout.
        failures: in a row.
        failing_since: the first failure in the row, or the first vain reading of its model; None: unknown.
        need_error: why the need of its model is unknown; empty: it is known, or being worked out.
        overdue: its process starts for longer than `start_timeout`, without what was fetched before.
    """

    id: str
    deployment: str
    phase: str
    since: datetime
    reason: str
    message: str
    failures: int = 0
    failing_since: datetime | None = None
    need_error: str = ""
    overdue: bool = False


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
    """An API key that ends soon."""

    id: str
    name: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """A certificate of the controller that is asked.

    Attributes:
        authority: it is the one of the authority that agents and clients learn, and not of the public port.
        ends_at: the end of the one in use.
        warn_s: how long before that an operator should know.
        problem: why the files of a newer one cannot be used; empty: they can.
    """

    ends_at: datetime
    warn_s: float
    authority: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SealingFacts:
    """How the secrets of agents' proxies and the key of receipts are stored.

    Attributes:
        plain: some of both is stored unencrypted, and this controller has no key.
        waits_for: gateways that have not reported the key under which secrets shall be sealed.
        locked_out: gateways that lack the key under which they are.
        receipts_unreadable: this controller cannot open the key of receipts.
    """

    plain: bool = False
    waits_for: Sequence[str] = ()
    locked_out: Sequence[str] = ()
    receipts_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """Everything at one moment.

    Attributes:
        at: that moment.
        leaderless_since: the last renewal of the lease; None with `leader`: there is a leader.
        leader: whether a controller leads.
        violations: the broken rows of the ledger, in words.
        unreadable_secrets: how many secrets no key of this controller opens.
        plain_secrets: how many secrets are stored unencrypted.
        sealing: of the keys by which agents are reached and believed.
        keys: that expire soon, the first one first.
        certificates: of this controller.
        database_full_since: when this controller met a full disk of the database; None: it has space, as far as known.
        database_low: how little is free on that disk, in words; empty: enough, or unknown.
    """

    at: datetime
    leader: bool = True
    leaderless_since: datetime | None = None
    violations: Sequence[str] = ()
    workers: Sequence[WorkerFacts] = ()
    instances: Sequence[TroubledInstance] = ()
    deployments: Sequence[TroubledDeployment] = ()
    idle: Sequence[IdleInstance] = ()
    gpus: Sequence[SickGpu] = field(default=())
    unreadable_secrets: int = 0
    plain_secrets: int = 0
    sealing: SealingFacts = SealingFacts()
    keys: Sequence[ExpiringKey] = ()
    certificates: Sequence[CertificateFacts] = ()
    database_full_since: datetime | None = None
    database_low: str = ""
