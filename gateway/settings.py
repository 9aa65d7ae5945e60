"""The gateway's settings, validated once. From arguments, else the environment (`GPUWARD_*`), else defaults."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from http1.protocol.connecting import Address
from http1.tls.pinned import Verified
from schemas.addresses import addresses_in, page_origin
from schemas.fields import Seconds, SizeMib
from schemas.setting_values import check_pair, listed

if TYPE_CHECKING:
    from ssl import SSLContext

KEY_FILE: Final = "proxy.key"  # next to the socket
_SOCKET: Final = "controller.sock"  # the controller's API, in its data folder
_HTTP_PORT = 80
_HTTPS_PORT = 443
LARGEST_BODY_MIB = 64


class GatewaySettings(BaseSettings):
    """Settings of one gateway process, from its environment."""

    model_config = SettingsConfigDict(env_prefix="GPUWARD_", frozen=True, extra="ignore")

    data_dir: Path | None = Field(
        None,
        description="The data folder of a controller on this host. Without `controller` the gateway takes from it the "
        "controller's socket, the embedded database where `database_url` is not set, and the certificate of "
        "`gpuward ca init` where `tls_cert` is not set.",
    )
    controller: str = Field(
        description="Where the controller's API is: `http://HOST:PORT` or `https://HOST:PORT`, those of several "
        "controllers with commas, or the path of its socket."
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8420, description="Port to listen on; 0 takes any free one.")
    drain: Annotated[Seconds, Field(ge=0, le=86_400)] = 600.0
    client_stall: Annotated[Seconds, Field(ge=1, le=3600)] = Field(
        60.0, description="A client that takes nothing of its answer for so long is cut."
    )
    gateway_processes: Annotated[int, Field(ge=1, le=64)] = Field(
        1, description="Processes that serve the port together; about one for each core that requests may use."
    )
    database_url: SecretStr = Field(description="The controller's database, for keys and routes.")
    gateway_secret: SecretStr | None = Field(
        None,
        description="By which a controller at a URL believes what the gateway says of clients: their address and "
        "scheme. Both need the same. On the controller's socket none is needed.",
    )
    proxy_key_file: Path | None = Field(
        None,
        description="File with the keys that open the secrets of agents' proxies, as `gpuward secret proxy-key` prints "
        "them; by default `proxy.key` next to the controller's socket. It is read again when it changes; see "
        "[Access](access.md).",
    )
    trusted_proxy: Annotated[
        tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...], NoDecode, BeforeValidator(listed)
    ] = Field((), description="Networks of the proxies whose `X-Forwarded-*` counts, separated by commas.")
    cors_origins: Annotated[
        tuple[Annotated[str, AfterValidator(page_origin)], ...], NoDecode, BeforeValidator(listed)
    ] = Field(
        (),
        description="Origins whose pages may read the answers of models, such as `https://chat.example.org`, separated "
        "by commas; `*`: any. By default a browser lets none.",
    )
    hsts: Annotated[Seconds, Field(ge=0)] = Field(
        0.0,
        description="For how long browsers shall use this host by TLS alone, such as `365d`, counted from each answer "
        "over TLS (`Strict-Transport-Security`); 0: no answer has that header.",
    )
    bodies_in_flight: SizeMib = Field(
        512,
        ge=LARGEST_BODY_MIB,
        validate_default=False,
        description="Memory that bodies of requests to models may hold at once; its processes have equal parts.",
    )
    bodies_in_flight_per_key: SizeMib = Field(
        256, ge=LARGEST_BODY_MIB, validate_default=False, description="Memory that one key's bodies may hold."
    )
    tls_cert: Path | None = Field(None, description="Certificate in PEM; with it the port speaks TLS.")
    tls_key: Path | None = Field(None, description="Key of the certificate, in PEM without a passphrase.")
    ca: Path | None = Field(
        None, description="Certificate of the authority of a controller at `https://`; by default the system's."
    )
    log_format: Literal["console", "json"] = Field("console", description="How logs are written.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")

    @model_validator(mode="before")
    @classmethod
    def _from_the_data_folder(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("data_dir") or given.get("controller"):
            return given
        return {**_from_data_folder(Path(given["data_dir"]), given), **given}

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        check_pair(self.tls_cert, self.tls_key)
        return self

    @property
    def proxy_keys_at(self) -> Path | None:
        """The file with the keys of agents' proxies; None without one."""
        if self.proxy_key_file is not None or not self.controller.startswith("/"):
            return self.proxy_key_file
        return Path(self.controller).parent / KEY_FILE

    @field_validator("controller")
    @classmethod
    def _reachable(cls, value: str) -> str:
        addresses_of(value, None)
        return value


def _from_data_folder(data_dir: Path, given: Mapping[str, object]) -> dict[str, object]:
    """Settings of a gateway on the host of a controller, as far as its data folder has them."""
    from controller.live.database import embedded_url  # noqa: PLC0415 - slow to import
    from http1.tls.authority import Authority  # noqa: PLC0415 - slow to import

    settings: dict[str, object] = {"controller": str(data_dir.absolute() / _SOCKET)}
    if not given.get("database_url"):
        settings["database_url"] = embedded_url(data_dir)
    authority = Authority(data_dir)
    if authority.exists and not given.get("tls_cert"):
        settings["tls_cert"] = settings["tls_key"] = authority.server
    return settings


def addresses_of(controller: str, authority: "SSLContext | None") -> list[Address]:
    """Host and port of each URL, or the path of a socket. `authority`: verifies controllers at `https://`.

    Raises:
        ValueError: it is neither.
    """
    if controller.startswith("/"):
        return [controller]
    try:
        return [_address_of(url, authority) for url in addresses_in(controller)]
    except ValueError as error:
        raise ValueError(
            f"must be http://HOST:PORT or https://HOST:PORT, several with commas, or the path of a socket that begins "
            f"with /: {error}"
        ) from error


def _address_of(url: str, authority: "SSLContext | None") -> Address:
    parts = urlsplit(url)
    if not parts.hostname or parts.path.strip("/"):
        raise ValueError(f"{url!r} has a path, or no host")
    if parts.scheme == "http":
        return parts.hostname, parts.port or _HTTP_PORT
    port = parts.port or _HTTPS_PORT
    return (parts.hostname, port) if authority is None else Verified(parts.hostname, port, authority)


def part_of(mebibytes: int, processes: int) -> int:
    """One process's part of a bound on bodies, in bytes: at least one complete body."""
    return max(mebibytes // processes, LARGEST_BODY_MIB) * 2**20
