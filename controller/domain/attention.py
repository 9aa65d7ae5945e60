"""The input for the list of what needs an operator. Names are those of the API."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """A worker that is not ready, or has a condition that does not hold.

    Attributes:
        ready, state: without what an operator has set; `state` is the phase, or `quarantined`.
        reason: a code; may be empty.
        since: its last message if it is silent; else the start of its phase.
        conditions: code, text and start of each condition that does not hold.
        instances: number with claims there.
        sample: the first of these instances.
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
        message: its own; while it is pending also the cause that holds up its rollout.
        failures: in a row.
        failing_since: the first failure in the row, or the first failed read of its model; None: unknown.
        need_error: why the need of its model is unknown; empty if it is known or being analyzed.
        overdue: its process has been starting for longer than `start_timeout`, fetches excluded.
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
    """An API key that expires soon."""

    id: str
    name: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """A certificate of this controller.

    Attributes:
        authority: the certificate of the authority that agents and clients pin; else that of the public port.
        ends_at: the end of the certificate in use.
        warn_s: how long before `ends_at` an operator should know.
        problem: why the files of a newer certificate are not usable; empty if they are.
    """

    ends_at: datetime
    warn_s: float
    authority: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SealingFacts:
    """How the secrets of agents' proxies and the key of receipts are stored.

    Attributes:
        plain: some of them are stored unencrypted, and this controller has no key.
        waits_for: gateways that have not reported the key under which secrets will be sealed.
        locked_out: gateways that lack the key under which secrets are sealed.
        receipts_unreadable: this controller cannot open the key of receipts.
    """

    plain: bool = False
    waits_for: Sequence[str] = ()
    locked_out: Sequence[str] = ()
    receipts_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """Everything at one time.

    Attributes:
        leaderless_since: the last renewal of the lease; None while there is a leader.
        violations: the broken rows of the ledger, as text.
        unreadable_secrets: number of secrets that no key of this controller opens.
        plain_secrets: number of secrets that are stored unencrypted.
        keys: those that expire soon, in order of expiry.
        database_full_since: when this controller met a full disk of the database; None if it knows of none.
        database_low: the free space on that disk, as text; empty if it is enough or unknown.
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
