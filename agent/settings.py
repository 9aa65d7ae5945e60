"""The agent's settings, validated once: from arguments, the environment (`GPUWARD_AGENT_*`), or defaults."""

import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from agent.decide.engine_accounts import EngineUser, parse_engine_user
from agent.decide.engine_environment import check_listed
from schemas.addresses import addresses_in
from schemas.fields import NAME_PATTERN, SizeMib
from schemas.setting_values import check_pair, listed
from schemas.worker_labels import configured_labels

_LABEL_MAX = 63


def _default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/gpuward/agent")
    return Path.home() / ".local" / "share" / "gpuward" / "agent"


def _default_cache_dir() -> Path:
    """An existing cache, else a folder outside the data folder, since engines read it."""
    if known := os.environ.get("HF_HUB_CACHE"):
        return Path(known)
    if home := os.environ.get("HF_HOME"):
        return Path(home) / "hub"
    if os.geteuid() == 0:
        return Path("/var/cache/gpuward/models")
    return Path.home() / ".cache" / "gpuward" / "models"


def default_docker_address() -> str | None:
    """`DOCKER_HOST`, or the usual socket; None if it names another host."""
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    return address if address.startswith("unix://") else None


def host_label(hostname: str | None = None) -> str:
    """The first part of this host's name as a DNS label; `worker` if no valid character is left."""
    first = (hostname if hostname is not None else socket.gethostname()).split(".")[0].lower()
    return re.sub(r"[^a-z0-9-]+", "-", first)[:_LABEL_MAX].strip("-") or "worker"


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


class AgentSettings(BaseSettings):
    """The settings of one agent.

    Attributes:
        controller_url: the controllers' addresses, such as http://10.0.0.1:8080, separated by commas.
        join_token: required only at the first start.
        join_token_file: a file with the token, read when required.
        name: the worker's name. None: as journalled, else the host's name.
        simulate: file of simulated hosts; the agent simulates the host of its name.
        data_dir: folder of the journal, the logs and the engines' working folders; one agent per folder.
        advertise: HOST or HOST:PORT where the controller reaches the proxy. None: the agent's source address.
        proxy_host: address that the proxy binds.
        proxy_port: port that the proxy binds; 0: the previous start's port, else any free one.
        on_exit: whether a clean shutdown stops the engines.
        labels: the worker's labels, for placement.
        cache_dir: folder for models of the hub, shared by all deployments of the host.
        cache_limit: largest size of the cache (MiB); None: the disk is the limit.
        offline: take models of the hub only from the cache.
        reserve_host_memory: host memory (MiB) that placement must not use.
        reserve_gpu_memory: memory (MiB) of each GPU that placement must not use; an exclusive claim includes it.
        cgroup: `auto`: engines get control groups where systemd has delegated some; `off`; or a folder of version 2.
        docker: `auto`: the engine of `DOCKER_HOST` or the usual socket, except for a simulated host; `off`; or its
            address, such as unix:///var/run/docker.sock.
        container_user: `UID` or `UID:GID` of containers; only an agent of root may name another user. None:
            as `engine_user`, else as the agent, for root without capabilities.
        engine_user: account of engines, `USER[:GROUP]`; or a range of uids `FIRST-LAST[:GROUP]`, of which each instance
            gets its own. None: the agent's.
        engine_environment: additional variables of the agent's environment for engines: names and `PREFIX*`, separated
            by commas. A credential passes only by its full name, and no `GPUWARD_*` passes.
        tls_cert: certificate of the proxy, in PEM. None: self-signed by the agent.
        tls_key: its key.
        proxy_tls: whether the agent reports a certificate to the proxy's callers, which then speak TLS. `auto`: unless
            the controller is on this host and no other address is advertised.
        ca: the authority of the controller's certificate, in PEM. None: the one that the join token named, else the
            system's.
        log_format: format of the logs that `daemon.main` writes.
    """

    model_config = SettingsConfigDict(
        env_prefix="GPUWARD_AGENT_", frozen=True, extra="forbid", populate_by_name=True, validate_default=True
    )

    controller_url: str
    join_token: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("join_token", "GPUWARD_JOIN_TOKEN", "GPUWARD_AGENT_JOIN_TOKEN"),
    )
    join_token_file: Path | None = Field(
        default=None,
        validation_alias=AliasChoices("join_token_file", "GPUWARD_JOIN_TOKEN_FILE", "GPUWARD_AGENT_JOIN_TOKEN_FILE"),
    )
    name: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    simulate: Path | None = None
    data_dir: Path = Field(default_factory=_default_data_dir)
    advertise: str | None = None
    proxy_host: str = "0.0.0.0"  # noqa: S104 - the controller is on another host; every request needs the secret
    proxy_port: Annotated[int, Field(ge=0, le=65535)] = 0
    on_exit: Literal["stop", "keep"] = "stop"
    labels: dict[str, str] = {}
    cache_dir: Path = Field(default_factory=_default_cache_dir)
    cache_limit: SizeMib | None = None
    offline: bool = Field(default_factory=lambda: os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes"))
    reserve_host_memory: SizeMib | None = None
    reserve_gpu_memory: SizeMib | None = None
    cgroup: str = "auto"
    docker: str = "auto"
    container_user: str | None = None
    engine_user: str | None = None
    engine_environment: Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    proxy_tls: Literal["auto", "on", "off"] = "auto"
    ca: Path | None = None
    log_format: Literal["console", "json"] = "console"

    @field_validator("controller_url")
    @classmethod
    def _addresses(cls, value: str) -> str:
        return ",".join(addresses_in(value))

    @property
    def controller_urls(self) -> tuple[str, ...]:
        return tuple(self.controller_url.split(","))

    @field_validator("data_dir", "cache_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("cgroup")
    @classmethod
    def _cgroup_folder(cls, value: str) -> str:
        if value not in {"auto", "off"} and not value.startswith("/"):
            raise ValueError(f"must be auto, off, or an absolute path, got {value!r}")
        return value

    @field_validator("docker")
    @classmethod
    def _docker_address(cls, value: str) -> str:
        if value not in {"auto", "off"} and not value.startswith("unix:///"):
            raise ValueError(f"must be auto, off, or unix:///PATH of a socket of this host, got {value!r}")
        return value

    @field_validator("container_user")
    @classmethod
    def _possible_user(cls, value: str | None) -> str | None:
        own = os.geteuid()
        if value is not None and not re.fullmatch(r"\d{1,9}(:\d{1,9})?", value):
            raise ValueError(f"must be UID or UID:GID, in digits, got {value!r}")
        if value is not None and own != 0 and int(value.partition(":")[0]) != own:
            raise ValueError(f"must be {own}, as which this agent runs: only an agent of root can name another user")
        return value

    @field_validator("engine_user")
    @classmethod
    def _engine_user(cls, value: str | None) -> str | None:
        if value is not None:
            parse_engine_user(value)
        return value

    @field_validator("engine_environment")
    @classmethod
    def _names_of_variables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_listed(value)
        return value

    @field_validator("labels")
    @classmethod
    def _own_labels(cls, value: dict[str, str]) -> dict[str, str]:
        return configured_labels(value)

    @field_validator("advertise")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value is None:
            return None
        match = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+)(?::(\d{1,5}))?", value)
        if match is None or (match[2] is not None and not 0 < int(match[2]) <= 65535):  # noqa: PLR2004 - the last port
            raise ValueError(f"must be HOST or HOST:PORT (an IPv6 address in brackets), got {value!r}")
        return value

    @model_validator(mode="after")
    def _single_token_source(self) -> Self:
        if self.join_token is not None and self.join_token_file is not None:
            raise ValueError("join_token and join_token_file: both are set; set one of them")
        return self

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        check_pair(self.tls_cert, self.tls_key)
        return self

    def speaks_tls(self) -> bool:
        """Whether the proxy has a certificate."""
        if self.proxy_tls != "auto":
            return self.proxy_tls == "on"
        known = [*self.controller_urls, *([] if self.advertise is None else [f"//{self.advertise}"])]
        return not all(_is_loopback(urlsplit(address).hostname) for address in known)

    def cgroup_folder(self) -> Path | None:
        """The folder in `cgroup`; None for `auto` and `off`."""
        return Path(self.cgroup) if self.cgroup.startswith("/") else None

    def engine_account(self) -> EngineUser | None:
        """None: engines run as the agent."""
        return None if self.engine_user is None else parse_engine_user(self.engine_user)

    def docker_address(self) -> str | None:
        """None: the agent runs no containers."""
        if self.docker == "off" or (self.docker == "auto" and self.simulate is not None):
            return None
        return default_docker_address() if self.docker == "auto" else self.docker

    def advertised(self, bound_port: int) -> str | None:
        """The address for the controller, with `bound_port` unless the setting has a port."""
        if self.advertise is None or re.search(r"[^:\]]:\d+$|\]:\d+$", self.advertise):
            return self.advertise
        return f"{self.advertise}:{bound_port}"
