"""A process in a container: names, labels, environment, network, limits, and Docker's responses. Pure."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import PurePath
from typing import Any, Final, Literal

from agent.state.process_records import ProcessKey
from schemas.exit_causes import Cause
from schemas.image_names import short_repository
from schemas.wire import ContainerOrder, StartOrder

AGENT_LABEL: Final = "gpuward.agent"
INSTANCE_LABEL: Final = "gpuward.instance"
EPOCH_LABEL: Final = "gpuward.epoch"
RANK_LABEL: Final = "gpuward.rank"
MOST_PROCESSES: Final = 32_768  # as for engines outside containers
NO_TOOLKIT: Final = (
    "no NVIDIA container toolkit on this host: install the package nvidia-container-toolkit, run"
    " `nvidia-ctk runtime configure --runtime=docker`, and restart Docker"
)
_LOG_OPTIONS: Final = {"max-size": "16m", "max-file": "2"}  # the agent copies it; Docker's own copy is bounded
_MIB: Final = 2**20
_SIGNALS: Final = range(129, 193)  # a container that a signal N has killed ends with 128 + N
_SIMULATED_ENGINE: Final = ("python3", "-P", "-m", "agent.simulated_engine", "--host", "{host}")
AWAY_S: Final = 10.0  # Docker may restart and then report how it ended
ERRORS_S: Final = 60.0  # a Docker that answers with errors is more likely to report it
FirstProcess = Literal["runs", "gone", "unknown"]
NETWORK_LABEL: Final = "gpuward.network"
_LABELS: Final = {NETWORK_LABEL: "engines"}
_OPTIONS: Final = {"com.docker.network.bridge.enable_icc": "false"}
_OWN: Final = "bridge"  # of Docker itself; without it Docker has no bridges


@dataclass(frozen=True, slots=True)
class EndEvidence:
    """Evidence of a container's end while Docker does not report its state."""

    answers: bool  # Docker answers, with an error or invalidly; else it is silent
    # the first process of the container, known by pid and start. `gone`: it ran, and /proc, which shows all processes
    # of this host, no longer has it. `unknown`: anything else
    process: FirstProcess
    signalled_by_pid: bool = False  # this agent signalled it by its pid while it ran
    earlier_boot: bool = False  # the container was started before the host's last boot, and has no first process since
    for_s: float = 0.0  # seconds since this evidence holds


@dataclass(frozen=True, slots=True)
class Place:
    """Properties of a container that depend on this host."""

    owner: str  # id of this agent, for the label
    image: str  # id or reference
    user: str  # `uid:gid`
    groups: tuple[str, ...]
    work: PurePath  # working folder of the instance, on the host and in the container
    port: int | None  # on the host and in the container
    network: str | None  # id; None: the host's network
    env: Mapping[str, str]  # complete
    read: tuple[str, ...] = ()  # files and folders of the host, mounted read-only at the same path
    init: bool = True  # Docker adds a small init, which forwards signals and reaps

    @property
    def on_bridge(self) -> bool:
        return self.network is not None


def container_name(owner: str, key: ProcessKey) -> str:
    """The same for every agent on the data folder, so that a later agent finds the container."""
    instance = re.sub(r"[^A-Za-z0-9_.-]", "_", key.instance)
    return f"gpuward-{owner[:12]}-{instance}-{key.epoch}-{key.rank}"


def labels(owner: str, key: ProcessKey) -> dict[str, str]:
    return {
        AGENT_LABEL: owner,
        INSTANCE_LABEL: key.instance,
        EPOCH_LABEL: str(key.epoch),
        RANK_LABEL: str(key.rank),
    }


def key_of(labels: Mapping[str, str]) -> ProcessKey | None:
    """The process that labels name; None if they are incomplete or invalid."""
    try:
        return ProcessKey(labels[INSTANCE_LABEL], int(labels[EPOCH_LABEL]), int(labels[RANK_LABEL]))
    except (KeyError, ValueError):
        return None


def container_argv(order: StartOrder, port: int | None, *, bridge: bool) -> list[str]:
    """The argv with {port}, {host}, {python} and {simulated_engine} filled in.

    In a bridge the engine listens on every address of the container: only the host's 127.0.0.1 leads there.
    """
    parts = order.argv
    if parts[:1] == ("{simulated_engine}",):
        parts = (*_SIMULATED_ENGINE, *parts[1:])
    values = {"{python}": "python3", "{host}": "0.0.0.0" if bridge else "127.0.0.1"}  # noqa: S104 - see above
    if port is not None:
        values["{port}"] = str(port)
    return [fill_in(part, values) for part in parts]


def fill_in(text: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def visible_gpus(order: StartOrder, index_of: Callable[[str], int | None]) -> dict[str, str]:
    """The engine's GPUs in its order: by UUID, or by index within the container.

    `index_of` returns a GPU's index on the host. A container has its GPUs in the host's order, from 0. Without a claim
    it gets none, whatever its image and Docker's default runtime request.
    """
    if not order.claims:
        return {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    uuids = [claim.device for claim in order.claims]
    known = [index for uuid in uuids if (index := index_of(uuid)) is not None]
    if not order.gpus_by_index or len(known) < len(uuids):
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    places = {index: place for place, index in enumerate(sorted(known))}
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(str(places[index]) for index in known),
    }


def create_config(order: StartOrder, key: ProcessKey, place: Place) -> dict[str, Any]:
    """The request to Docker. Raises ValueError if the order has no container."""
    container = order.container
    if container is None:
        raise ValueError("the order has no container")
    ports: dict[str, object] = {} if place.port is None or not place.on_bridge else {f"{place.port}/tcp": {}}
    return {
        "Image": place.image,
        "Entrypoint": container_argv(order, place.port, bridge=place.on_bridge),  # in place of the image's own
        "Cmd": [],
        "Healthcheck": {"Test": ["NONE"]},  # the agent probes
        "Env": [f"{name}={value}" for name, value in sorted(place.env.items())],
        "User": place.user,
        "WorkingDir": str(place.work),
        "Labels": labels(place.owner, key),
        "ExposedPorts": ports,
        "StopSignal": "SIGTERM",
        "HostConfig": _host_config(order, container, place, ports),
    }


def _host_config(
    order: StartOrder, container: ContainerOrder, place: Place, ports: Mapping[str, object]
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "NetworkMode": place.network or "host",
        "PortBindings": {name: [{"HostIp": "127.0.0.1", "HostPort": str(place.port)}] for name in ports},
        "RestartPolicy": {"Name": "no"},
        "Init": place.init,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "GroupAdd": list(place.groups),
        "PidsLimit": MOST_PROCESSES,
        "LogConfig": {"Type": "json-file", "Config": dict(_LOG_OPTIONS)},
        "Mounts": _mounts(container, place),
    }
    if order.host_memory_mib:
        config["Memory"] = config["MemorySwap"] = order.host_memory_mib * _MIB  # both: it gets no swap
    if container.shm_size_mib:
        config["ShmSize"] = container.shm_size_mib * _MIB
    if order.claims:
        uuids = [claim.device for claim in order.claims]
        config["DeviceRequests"] = [{"Driver": "nvidia", "DeviceIDs": uuids, "Capabilities": [["gpu"]]}]
    return config


def _mounts(container: ContainerOrder, place: Place) -> list[dict[str, Any]]:
    """Mounts that fail if the host lacks the folder; binds would create it."""
    mounts = {str(place.work): _mount(str(place.work), str(place.work), read_only=False)}
    for path in (*place.read, *container.models):
        mounts[path] = _mount(path, path, read_only=True)
    for source, target in container.volumes.items():
        path = target.removesuffix(":ro").removesuffix(":rw")
        mounts[path] = _mount(source, path, read_only=target.endswith(":ro"))
    return list(mounts.values())


def _mount(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def exit_code(code: int) -> int:
    """An exit code as Python's subprocess gives it: negative for a signal."""
    return 128 - code if code in _SIGNALS else code


def digest_of(reference: str, repo_digests: list[str]) -> str | None:
    """The digest by which an image can be pulled again from the reference's repository; None if it has none.

    Of several digests in the repository the one in the reference counts.
    """
    digests = [digest for name, _, digest in (entry.partition("@") for entry in repo_digests)
               if digest and short_repository(name) == short_repository(reference)]  # fmt: skip
    named = reference.partition("@")[2]
    return named if named in digests else next(iter(digests), None)


def has_tag(reference: str) -> bool:
    """Whether a reference has a tag or a digest; without, Docker would pull all tags."""
    return bool(set(":@") & set(reference.rpartition("/")[2]))


def registry_of(reference: str) -> str:
    """The host of the registry; `docker.io` for each name of Docker Hub."""
    first, slash, _ = reference.partition("/")
    named = slash and (set(".:") & set(first) or first == "localhost")
    return first if named and first != "index.docker.io" else "docker.io"


_MISSING: Final = re.compile(
    r"manifest unknown|manifest for .* not found|no such image|pull access denied|repository .{1,300} not found"
    r"|name unknown|: not found$|invalid reference format|unauthorized|authentication required|\bdenied:",
    re.IGNORECASE,
)


def pull_error(reference: str, message: str) -> str:
    """Why an image cannot be pulled: a code and a text."""
    code = Cause.IMAGE_NOT_FOUND if _MISSING.search(message) else Cause.IMAGE_PULL_FAILED
    return f"{code}: {reference}: {message}"


def start_error(program: str, reference: str, message: str) -> str:
    """Why a container does not start. An unknown message of Docker is kept."""
    if "could not select device driver" in message:
        return f"{Cause.RUNTIME_UNSUPPORTED}: {NO_TOOLKIT}"
    if "executable file not found" in message or ("exec:" in message and "no such file or directory" in message):
        return f"image {reference} has no program {program!r}; set `command`, or another image"
    if "bind source path does not exist" in message:
        return f"a folder to mount is not on this host: {message.rpartition('does not exist: ')[2]}"
    return f"Docker cannot start the container: {message}"


def lacks_init(message: str) -> bool:
    return "docker-init" in message


def has_ended(known: EndEvidence) -> bool:
    """Whether nothing of a container can run any more. Unknown is not an end: its claims stay."""
    # The first process becomes a zombie after all others, and without a restart policy Docker starts none again.
    if known.process == "runs":
        return False
    if known.earlier_boot:
        return not known.answers or known.for_s >= ERRORS_S
    if known.process == "unknown":
        return False
    return known.signalled_by_pid or known.for_s >= (ERRORS_S if known.answers else AWAY_S)


# The network of engines: the host's loopback reaches each engine, and engines do not reach one another. All agents of a
# host share it. It is found by label, since two networks may have one name: then Docker starts nothing in either.
# Docker keeps a network in use, and a missing network is created at the next start. Two agents may each create one at
# once: that is harmless, since networks do not reach one another either.


def network_config(owner: str, taken: Collection[str] = ()) -> dict[str, Any]:
    """The request to create the network. `owner`: id of the agent; `taken`: names of other networks."""
    name = f"gpuward-{owner[:12]}"
    free = next(choice for n in count(1) if (choice := name if n == 1 else f"{name}-{n}") not in taken)
    return {
        "Name": free,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Labels": dict(_LABELS),
        "Options": dict(_OPTIONS),
    }


def engines_network(networks: Iterable[Mapping[str, Any]]) -> str | None:
    """The id of a network that separates engines; None if there is no such network."""
    ids = [
        str(network["Id"])
        for network in networks
        if network.get("Driver") == "bridge"
        and _LABELS.items() <= (network.get("Labels") or {}).items()
        and _OPTIONS.items() <= (network.get("Options") or {}).items()
    ]
    return min(ids, default=None)


def has_bridges(networks: Iterable[Mapping[str, Any]]) -> bool:
    """Whether containers can have networks of their own."""
    return any(network.get("Name") == _OWN for network in networks)
