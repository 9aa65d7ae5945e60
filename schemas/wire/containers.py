"""Processes that run in containers: what the controller orders, and what a host can run."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from schemas.wire.base import Wire, WireName, WireText

PULLING: Final = "pulling image "  # begins the message of a starting process while its image is fetched
RUNTIME_DOCKER: Final = "docker"


class ContainerOrder(Wire, frozen=True, kw_only=True):
    """The container of one process. Argv, environment, GPUs, port and host memory are those of its start order.

    Within the container {port} is the port that the engine listens on, and {host} the address.
    """

    image: Annotated[str, Meta(min_length=1)]  # with a digest where the revision has kept one
    pull: Literal["missing", "always", "never"] = "missing"
    shm_size_mib: int | None = None  # None: Docker's default
    volumes: dict[str, str] = {}  # folder of the host -> folder in the container, optionally with ":ro"
    models: tuple[str, ...] = ()  # folders or files of the host that the engine reads: read-only at the same path
    host_network: bool = False  # for gangs: ports are bound to 127.0.0.1 or the gang's address


class RuntimeFacts(Wire, frozen=True, kw_only=True):
    """What a host can run besides its own processes."""

    name: WireName  # RUNTIME_DOCKER
    usable: bool
    gpus: bool = False  # containers can get NVIDIA GPUs
    reason: WireText = ""  # why containers or their GPUs cannot be had, and what to do
    version: WireName = ""
