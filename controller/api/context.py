"""Shared by all handlers: the database, the leader's state, and callbacks into the rest of the controller."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.domain.access.grants import Grant
from controller.domain.attention import CertificateState
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
    """The result of one readiness check. `message`: the problem, or details."""

    ok: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class KnownAuthority:
    """The certificate authority that join tokens name: its certificate in PEM, and the SHA-256 of its public key."""

    certificate: bytes
    public_key_hash: str


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Dependencies of the handlers.

    Attributes:
        changes: change notifications of the database, for watches.
        leadership: whether this controller is the leader, and its term.
        readiness: the checks behind /readyz, by name.
        loop_lag: the event loop's recent lag, in seconds.
        analyse: computes the need of a spec that has no analysis yet; raises ChildFailure.
        registry: the metrics of this process; /metrics adds those read from rows.
        known_secrets: their values are removed from answers.
        operators_may: grants of operators.
        trusted_labels: patterns of the keys of labels that hosts may not set.
        longest_window_s: the retention of samples; the longest allowed window of a policy.
        proxies: their `X-Forwarded-*` counts.
        from_gateway: whether a request comes from the gateway, whose headers state its origin.
        bodies: bounds the bytes of bodies in flight.
        prices: what an hour of each GPU model costs.
        local_keys: keys of this process alone, by their hash.
        authority: agents learn it when they join; None: the controller has no TLS, or a certificate that systems trust.
        certificates: this controller's certificates, for warnings before they expire.
        renew_secrets_key: makes a new current key if this controller makes its keys, else reads the keys again.
        drop_old_secrets_keys: keeps the current key and those of these ids.
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
    certificates: Callable[[], Sequence[CertificateState]] = tuple
    secret_keys: SecretKeys = NO_KEYS
    renew_secrets_key: Callable[[], None] = lambda: None
    drop_old_secrets_keys: Callable[[Collection[str]], None] = lambda _in_use: None


CONTEXT: Final = web.AppKey("CONTEXT", ApiContext)
KEYS: Final = web.AppKey("KEYS", KeyRing)
BODY: Final = web.RequestKey("BODY", Hold)
PRINCIPAL: Final = web.RequestKey("PRINCIPAL", Principal)
