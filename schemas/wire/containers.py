"""Processes in containers: the order, and the runtimes of a host."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from schemas.wire.base import Wire, WireName, WireText

PULLING: Final = "pulling image "  # starts the message of a process while its image is fetched
RUNTIME_DOCKER: Final = "docker"


class ContainerOrder(Wire, frozen=True, kw_only=True):
    """The container of one process. Argv, environment, GPUs, port and host memory are those of its start order.

    In the container {port} is the engine's port, and {host} its address.
    """

    image: Annotated[str, Meta(min_length=1)]  # with the digest of the revision, if it keeps one
    pull: Literal["missing", "always", "never"] = "missing"
    shm_size_mib: int | None = None  # None: Docker's default
    volumes: dict[str, str] = {}  # folder of the host -> folder in the container, optionally with ":ro"
    models: tuple[str, ...] = ()  # folders or files of the host that the engine reads: read-only at the same path
    host_network: bool = False  # for gangs: ports are bound to 127.0.0.1 or the gang's address


class ReportedRuntime(Wire, frozen=True, kw_only=True):
    """A runtime of a host, in addition to its own processes."""

    name: WireName  # RUNTIME_DOCKER
    usable: bool
    gpus: bool = False  # containers can get NVIDIA GPUs
    reason: WireText = ""  # why containers or their GPUs are not usable, and the fix
    version: WireName = ""
