"""The gateway's settings, validated once. From arguments, else the environment (`GPUWARD_*`), else defaults."""

import ipaddress
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from schemas.quantities import Seconds, SizeMib

_HTTP_PORT = 80
LARGEST_BODY_MIB = 64


def _listed(value: object) -> object:
    """`10.0.0.0/8, fd00::/8` as a list."""
    return [one.strip() for one in value.split(",") if one.strip()] if isinstance(value, str) else value


class GatewaySettings(BaseSettings):
    """The settings of one gateway process."""

    model_config = SettingsConfigDict(env_prefix="GPUWARD_", frozen=True, extra="ignore")

    controller: str = Field(description="Where the controller's API is: `http://HOST:PORT`, or the path of its socket.")
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
    trusted_proxy: Annotated[
        tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...], NoDecode, BeforeValidator(_listed)
    ] = Field((), description="Networks of the proxies whose `X-Forwarded-*` counts, separated by commas.")
    bodies_in_flight: SizeMib = Field(
        512,
        ge=LARGEST_BODY_MIB,
        validate_default=False,
        description="Memory that bodies of requests to models may hold at once; its processes have equal parts.",
    )
    bodies_in_flight_per_key: SizeMib = Field(
        256, ge=LARGEST_BODY_MIB, validate_default=False, description="Memory that one key's bodies may hold."
    )
    log_format: Literal["console", "json"] = Field("console", description="How logs are written.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")

    @field_validator("controller")
    @classmethod
    def _reachable(cls, value: str) -> str:
        address_of(value)
        return value


def address_of(controller: str) -> tuple[str, int] | str:
    """Host and port of a URL, or the path of a socket.

    Raises:
        ValueError: neither.
    """
    if controller.startswith("/"):
        return controller
    parts = urlsplit(controller)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise ValueError("must be http://HOST:PORT, or the path of a socket that begins with /")
    return parts.hostname, parts.port or _HTTP_PORT


def part_of(mebibytes: int, processes: int) -> int:
    """One process's part of a bound on bodies, in bytes: at least one whole body."""
    return max(mebibytes // processes, LARGEST_BODY_MIB) * 2**20
