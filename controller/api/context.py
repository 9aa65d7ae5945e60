"""What the handlers share: the database, the leader's state, and callbacks into the rest of the controller."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.domain.access.grants import Grant
from controller.domain.attention import CertificateFacts
from controller.domain.placement import Need
from controller.domain.telemetry.gpu_prices import NO_PRICES, GpuPrices
from controller.live.change_fanout import ChangeFanout
from controller.live.key_ring import KeyRing
from controller.live.known_secrets import KnownSecrets
from controller.runtime.origin import GatewayTrust
from controller.scheduling.admission.admit import DEFAULT_RESERVE, ReserveTimes
from controller.store.access.key_reads import Principal
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Database
from http1.bodies import Bodies, Hold
from http1.forwarded import TrustedProxies
from schemas.manifest.deployment import DeploymentSpec
from schemas.worker_labels import TRUSTED_LABELS


@dataclass(frozen=True, slots=True)
class Check:
    """One readiness check; `message` says what is wrong, or gives details."""

    ok: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class KnownAuthority:
    """The certificate authority that join tokens name: its certificate in PEM, and the SHA-256 of its public key."""

    certificate: bytes
    public_key_hash: str


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Everything that the handlers use.

    Attributes:
        database: to read and write.
        changes: change notifications of the database, for watches.
        leadership: whether this controller is the leader, and its term.
        readiness: the checks behind /readyz, by name.
        loop_lag: the event loop's recent lag, in seconds.
        analyse: computes the need of a spec that has no analysis yet; raises ChildFailure.
        registry: the metrics of this process; /metrics adds those read from rows.
        version: of Gpuward.
        known_secrets: whose values no answer shows.
        reserve: when and how long capacity is reserved for a pending instance.
        operators_may: what operators may write in a deployment beside what every operator may.
        viewers_read_logs: whether keys of the role `viewer` may read logs.
        trusted_labels: patterns of the keys of labels that hosts do not set.
        longest_window_s: how long samples are kept; the longest allowed window of a policy.
        proxies: whose `X-Forwarded-*` counts.
        from_gateway: whether the gateway passes a request on, whose word on its origin counts.
        bodies: bounds the bytes of bodies in flight.
        prices: of GPU hours.
        local_keys: keys of this process alone, by their hash.
        authority: that agents learn when they join; None: the controller speaks no TLS, or all systems know its own.
        certificates: of this controller, that may end.
        secret_keys: encrypt secrets.
        renew_secrets_key: makes a new key the present one where this controller makes it itself, else reads the keys
            again.
        drop_old_secrets_keys: keeps the present one and those of these ids, likewise.
    """

    database: Database
    changes: ChangeFanout
    leadership: Callable[[], tuple[bool, int | None]]
    readiness: Callable[[], Awaitable[Mapping[str, Check]]]
    loop_lag: Callable[[], float]
    analyse: Callable[[DeploymentSpec], Awaitable[Need]]
    registry: CollectorRegistry
    version: str
    longest_window_s: float
    known_secrets: KnownSecrets
    reserve: ReserveTimes = DEFAULT_RESERVE
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    from_gateway: GatewayTrust = field(default_factory=GatewayTrust)
    bodies: Bodies = field(default_factory=lambda: Bodies(512 * 2**20, 256 * 2**20))
    operators_may: frozenset[Grant] = frozenset()
    viewers_read_logs: bool = False
    trusted_labels: Sequence[str] = TRUSTED_LABELS
    prices: GpuPrices = NO_PRICES
    local_keys: Mapping[bytes, Principal] = field(default_factory=dict)
    authority: KnownAuthority | None = None
    certificates: Callable[[], Sequence[CertificateFacts]] = tuple
    secret_keys: SecretKeys = NO_KEYS
    renew_secrets_key: Callable[[], None] = lambda: None
    drop_old_secrets_keys: Callable[[Collection[str]], None] = lambda _in_use: None


CONTEXT: Final = web.AppKey("CONTEXT", ApiContext)
KEYS: Final = web.AppKey("KEYS", KeyRing)
BODY: Final = web.RequestKey("BODY", Hold)
PRINCIPAL: Final = web.RequestKey("PRINCIPAL", Principal)
