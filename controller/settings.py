"""The controller's settings, validated once. From arguments, else the environment (`GPUWARD_*`), else defaults."""

import ipaddress
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from controller.domain.access.grants import Grant
from controller.domain.restart_delays import RestartSettings
from controller.domain.telemetry.gpu_prices import GpuPrices, prices_of
from controller.domain.workers import WorkerSettings
from controller.engines.containers import DEFAULT_IMAGES
from controller.scheduling.admission.admit import ReserveTimes
from schemas.addresses import page_origin
from schemas.fields import Seconds, SizeMib
from schemas.manifest.docker import image_text
from schemas.setting_values import check_pair, listed
from schemas.worker_labels import TRUSTED_LABELS

DEFAULT_PORT = 8420


def default_data_dir() -> Path:
    """`/var/lib/gpuward` for root, else the user's data folder."""
    if os.geteuid() == 0:
        return Path("/var/lib/gpuward")
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "gpuward"


def _images(value: object) -> object:
    """Parses `vllm=registry.example/vllm:v1, sglang=...`; ValueError for another form or an engine without an image."""
    if not isinstance(value, str):
        return value
    images: dict[str, str] = {}
    for entry in filter(None, (entry.strip() for entry in value.split(","))):
        engine, equals, image = (part.strip() for part in entry.partition("="))
        if not equals or engine not in DEFAULT_IMAGES:
            raise ValueError(f"{entry!r}: write ENGINE=IMAGE with one of {', '.join(DEFAULT_IMAGES)}")
        images[engine] = image_text(image)
    return images


def _prices(value: object) -> object:
    return prices_of(value) if isinstance(value, str) else value


Positive = Annotated[float, Field(gt=0, le=86_400)]


class ControllerSettings(BaseSettings):
    """The settings of one controller. Times in seconds."""

    model_config = SettingsConfigDict(env_prefix="GPUWARD_", frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = DEFAULT_PORT
    data_dir: Path = Field(default_factory=default_data_dir)
    database_url: SecretStr | None = None  # None: the embedded server in the data folder
    secrets_key_file: Path | None = None  # keys that encrypt secrets, in base64, a line each; the first key encrypts
    secrets_key: SecretStr | None = None  # the same keys, with commas, in place of the file
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    lease_ttl_s: Positive = 10.0
    restart_backoff_s: Positive = 10.0  # after the first failure; doubles with each further failure
    unreachable_after_s: Positive = 15.0
    lost_after_s: Positive = 60.0
    reserve_after_s: Positive = 60.0  # capacity is reserved for an instance that has been pending for this long
    # Servers need not end. Capacity that they hold is reserved for this long; then the next instance has its turn.
    reserve_for_s: Annotated[float, Field(gt=0, le=30 * 86_400)] = 3600.0
    relocations_at_once: Annotated[int, Field(ge=1, le=100)] = 2  # instances relocated at the same time
    audit_every_s: Positive = 60.0
    keep_events_days: Annotated[int, Field(ge=1, le=3650)] = 30
    keep_audit_log_days: Annotated[int, Field(ge=1, le=3650)] = 90
    sample_every_s: Annotated[float, Field(ge=1, le=60)] = 10.0  # agents' sampling period
    keep_samples_h: Annotated[float, Field(ge=1, le=24 * 14)] = 25.0  # the longest window of a policy
    rollup_every_s: Positive = 60.0  # the delay of the history
    # Parts of deployments that operators may write, which otherwise only administrators may.
    operators_may: Annotated[frozenset[Grant], NoDecode, BeforeValidator(listed)] = frozenset()
    viewers_read_logs: bool = False  # engines may print requests and paths
    # Default images of engines' containers, in place of this version's.
    engine_images: Annotated[dict[str, str], NoDecode, BeforeValidator(_images)] = {}
    bodies_in_flight: SizeMib = Field(512, ge=64, validate_default=False)  # of requests' bodies held at once, in all
    bodies_in_flight_per_key: SizeMib = Field(256, ge=64, validate_default=False)
    gateway: bool = True  # run a gateway as a child, which owns the port
    socket_only: bool = False  # serve the API only on its socket: a gateway service of this host owns host and port
    gateway_processes: Annotated[int, Field(ge=1, le=64)] = 1  # of the child
    gateway_secret: SecretStr | None = None  # of gateways that are not on this host
    # Proxies whose X-Forwarded-* counts.
    trusted_proxy: Annotated[
        tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...], NoDecode, BeforeValidator(listed)
    ] = ()
    cors_origins: Annotated[
        tuple[Annotated[str, AfterValidator(page_origin)], ...], NoDecode, BeforeValidator(listed)
    ] = ()  # whose pages may read answers of models
    hsts: Annotated[Seconds, Field(ge=0)] = 0.0  # for which browsers shall use only TLS
    # Networks that webhooks may reach though they are not public, such as 10.1.2.0/24.
    webhooks_may_reach: Annotated[
        tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...], NoDecode, BeforeValidator(listed)
    ] = ()
    # Labels of workers that join tokens and administrators state, by patterns of their keys.
    trusted_labels: Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)] = TRUSTED_LABELS
    # Within which agents may advertise another address than that of their connection.
    advertise_networks: Annotated[
        tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...], NoDecode, BeforeValidator(listed)
    ] = ()
    keep_history_days: Annotated[int, Field(ge=1, le=400)] = 14  # one-minute rollups, spans of claims
    gpu_hour_prices: Annotated[dict[str, Decimal], NoDecode, BeforeValidator(_prices)] = {}  # by words in GPUs' models
    currency: str = Field("", validate_default=True)  # of the prices

    rotate_credentials_days: Annotated[float, Field(gt=0, le=3650)] = 30.0  # age at which an agent's is replaced
    # TLS on the public port: a certificate and its key, in PEM. None: those of `gpuward ca init`, if any.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None  # the authority in join tokens and client.env; None: all clients know it

    @model_validator(mode="after")
    def _socket_for_a_gateway_service(self) -> Self:
        if self.socket_only and self.gateway:
            raise ValueError("socket_only: needs --no-gateway, since a gateway of its own would own the port")
        return self

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        check_pair(self.tls_cert, self.tls_key)
        return self

    @field_validator("currency")
    @classmethod
    def _of_prices(cls, value: str, info: ValidationInfo) -> str:
        if re.fullmatch(r"[A-Z]{3}", value) or not (value or info.data.get("gpu_hour_prices")):
            return value
        problem = "must be three capital letters" if value else "is required with gpu_hour_prices"
        raise ValueError(f"{problem}; set GPUWARD_CURRENCY, for example to EUR")

    @field_validator("secrets_key")
    @classmethod
    def _one_source(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None and info.data.get("secrets_key_file") is not None:
            raise ValueError("is set, and secrets_key_file too; set one of them")
        return value

    @property
    def prices(self) -> GpuPrices:
        return GpuPrices(self.gpu_hour_prices, self.currency)

    @property
    def reserve(self) -> ReserveTimes:
        return ReserveTimes(self.reserve_after_s, self.reserve_for_s)

    @property
    def restarts(self) -> RestartSettings:
        return RestartSettings(base_s=self.restart_backoff_s, cap_s=max(300.0, self.restart_backoff_s))

    @property
    def workers(self) -> WorkerSettings:
        return WorkerSettings(
            unreachable_after_s=self.unreachable_after_s,
            disconnected_after_s=min(5.0, self.unreachable_after_s),
            lost_after_s=self.lost_after_s,
        )
