"""A process in a container: names, labels, environment, network and limits; what Docker's answers mean. Pure."""

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
MOST_PROCESSES: Final = 32_768  # as of engines that are no containers
NO_TOOLKIT: Final = (
    "no NVIDIA container toolkit on this host: install the package nvidia-container-toolkit, run"
    " `nvidia-ctk runtime configure --runtime=docker`, and restart Docker"
)
_LOG_OPTIONS: Final = {"max-size": "16m", "max-file": "2"}  # the agent copies it; Docker's own copy is bounded
_MIB: Final = 2**20
_SIGNALS: Final = range(129, 193)  # a container that a signal N has killed ends with 128 + N
_SIMULATED_ENGINE: Final = ("python3", "-P", "-m", "agent.simulated_engine", "--host", "{host}")
AWAY_S: Final = 10.0  # a Docker that starts again may still tell how it ended
ERRORS_S: Final = 60.0  # one that answers, with errors, is more likely to
FirstProcess = Literal["runs", "gone", "unknown"]
NETWORK_LABEL: Final = "gpuward.network"
_LABELS: Final = {NETWORK_LABEL: "engines"}
_OPTIONS: Final = {"com.docker.network.bridge.enable_icc": "false"}
_OWN: Final = "bridge"  # of Docker itself; without it Docker has no bridges


@dataclass(frozen=True, slots=True)
class NoWord:
    """What is known of a container without a word of Docker's that says how it is."""

    answers: bool  # Docker answers, with an error or with what makes no sense; else it is silent
    # the first process of the container, known by pid and start. `gone`: it ran, and /proc, which shows all processes
    # of this host, has it no more. `unknown`: anything else
    process: FirstProcess
    signalled_by_pid: bool = False  # this agent has signalled it by its pid while it ran, in place of Docker
    earlier_boot: bool = False  # the container was started before the host's last start, and has no first process since
    for_s: float = 0.0  # how long all of this has been so, in seconds


@dataclass(frozen=True, slots=True)
class Place:
    """Where and as what a container runs on this host."""

    owner: str  # id of this agent, which its label names
    image: str  # what runs: an id or a reference
    user: str  # `uid:gid` of the agent
    groups: tuple[str, ...]  # its other groups
    work: PurePath  # working folder of the instance, on the host and in the container
    port: int | None  # the port of the host, and in the container; None: it needs none
    network: str | None  # id of the network that it is in; None: it uses the host's
    env: Mapping[str, str]  # its whole environment
    read: tuple[str, ...] = ()  # files and folders of the host that it reads at the same path
    init: bool = True  # whether Docker puts a small init before it, which passes signals on and reaps

    @property
    def on_bridge(self) -> bool:
        """Whether Docker passes connections to its port on."""
        return self.network is not None


def container_name(owner: str, key: ProcessKey) -> str:
    """The name of a process's container: the same for every agent on the data folder, so that it is found again."""
    instance = re.sub(r"[^A-Za-z0-9_.-]", "_", key.instance)
    return f"gpuward-{owner[:12]}-{instance}-{key.epoch}-{key.rank}"


def labels(owner: str, key: ProcessKey) -> dict[str, str]:
    return {
        AGENT_LABEL: owner,
        INSTANCE_LABEL: key.instance,
        EPOCH_LABEL: str(key.epoch),
        RANK_LABEL: str(key.rank),
    }


def key_of(found: Mapping[str, str]) -> ProcessKey | None:
    """The process that labels name; None: they name none."""
    try:
        return ProcessKey(found[INSTANCE_LABEL], int(found[EPOCH_LABEL]), int(found[RANK_LABEL]))
    except (KeyError, ValueError):
        return None


def container_argv(order: StartOrder, port: int | None, *, bridge: bool) -> list[str]:
    """The argv with {port}, {host}, {python} and {simulated_engine} filled in.

    {host} is the address that the engine must listen on. In a bridge that is every address of the container: only the
    host's 127.0.0.1 leads there.
    """
    parts = order.argv
    if parts[:1] == ("{simulated_engine}",):
        parts = (*_SIMULATED_ENGINE, *parts[1:])
    values = {"{python}": "python3", "{host}": "0.0.0.0" if bridge else "127.0.0.1"}  # noqa: S104 - see above
    if port is not None:
        values["{port}"] = str(port)
    return [_filled(part, values) for part in parts]


def _filled(text: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def visible_gpus(order: StartOrder, index_of: Callable[[str], int | None]) -> dict[str, str]:
    """The GPUs in the order in which the engine sees them, by UUID; or by index, which counts within the container.

    `index_of` returns a GPU's index on the host. A container sees its GPUs in the host's order, from 0. Without a claim
    it sees none, whatever its image and Docker's default runtime say.
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
    """What Docker is asked to create. Raises ValueError if the order has no container."""
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
    """Binds that fail where the host has no such folder, in place of making one."""
    found = {str(place.work): _mount(str(place.work), str(place.work), read_only=False)}
    for path in (*place.read, *container.models):
        found[path] = _mount(path, path, read_only=True)
    for source, target in container.volumes.items():
        path = target.removesuffix(":ro").removesuffix(":rw")
        found[path] = _mount(source, path, read_only=target.endswith(":ro"))
    return list(found.values())


def _mount(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def exit_code(code: int) -> int:
    """An exit code as Python's subprocess gives it: negative for a signal."""
    return 128 - code if code in _SIGNALS else code


def digest_of(reference: str, repo_digests: list[str]) -> str | None:
    """The digest by which an image can be pulled again from where the reference points; None: it has none.

    One image may have several in a repository. Then the one counts that the reference names.
    """
    found = [digest for name, _, digest in (one.partition("@") for one in repo_digests)
             if digest and short_repository(name) == short_repository(reference)]  # fmt: skip
    named = reference.partition("@")[2]
    return named if named in found else next(iter(found), None)


def has_tag(reference: str) -> bool:
    """Whether it names a tag or a digest; without one Docker would pull all tags."""
    return bool(set(":@") & set(reference.rpartition("/")[2]))


def registry_of(reference: str) -> str:
    """The host of the registry; Docker Hub's own is `docker.io` under each of its names."""
    first, slash, _ = reference.partition("/")
    named = slash and (set(".:") & set(first) or first == "localhost")
    return first if named and first != "index.docker.io" else "docker.io"


_MISSING: Final = re.compile(
    r"manifest unknown|manifest for .* not found|no such image|pull access denied|repository .{1,300} not found"
    r"|name unknown|: not found$|invalid reference format|unauthorized|authentication required|\bdenied:",
    re.IGNORECASE,
)


def pull_error(reference: str, message: str) -> str:
    """Why an image cannot be had: a code and a text."""
    code = Cause.IMAGE_NOT_FOUND if _MISSING.search(message) else Cause.IMAGE_PULL_FAILED
    return f"{code}: {reference}: {message}"


def start_error(program: str, reference: str, message: str) -> str:
    """Why a container does not start; Docker's own words are kept where they say enough."""
    if "could not select device driver" in message:
        return f"{Cause.RUNTIME_UNSUPPORTED}: {NO_TOOLKIT}"
    if "executable file not found" in message or ("exec:" in message and "no such file or directory" in message):
        return f"image {reference} has no program {program!r}; set `command`, or another image"
    if "bind source path does not exist" in message:
        return f"a folder to mount is not on this host: {message.rpartition('does not exist: ')[2]}"
    return f"Docker cannot start the container: {message}"


def lacks_init(message: str) -> bool:
    return "docker-init" in message


def has_ended(known: NoWord) -> bool:
    """Whether nothing of it can run any more.

    The first process waits for all others before it becomes a zombie. Docker starts none again: it has no restart
    policy. What is unknown never counts as an end: its claims stay.
    """
    if known.process == "runs":
        return False
    if known.earlier_boot:
        return not known.answers or known.for_s >= ERRORS_S
    if known.process == "unknown":
        return False
    return known.signalled_by_pid or known.for_s >= (ERRORS_S if known.answers else AWAY_S)


# The network of engines: the host's loopback reaches each of them, and they do not reach one another. All agents of a
# host share it. It is found by its label, since two networks may have one name: then Docker starts nothing in either.
# Docker removes no network in use, and a missing one is made again at the next start. Two agents may each make one at
# the same moment: that is harmless, since networks do not reach one another either.


def network_config(owner: str, taken: Collection[str] = ()) -> dict[str, Any]:
    """The request to create it. `owner`: id of the agent; `taken`: names of other networks."""
    name = f"gpuward-{owner[:12]}"
    free = next(one for n in count(1) if (one := name if n == 1 else f"{name}-{n}") not in taken)
    return {
        "Name": free,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Labels": dict(_LABELS),
        "Options": dict(_OPTIONS),
    }


def engines_network(found: Iterable[Mapping[str, Any]]) -> str | None:
    """The id of the network of engines; None: there is none. One that separates no engines does not count."""
    ids = [
        str(one["Id"])
        for one in found
        if one.get("Driver") == "bridge"
        and _LABELS.items() <= (one.get("Labels") or {}).items()
        and _OPTIONS.items() <= (one.get("Options") or {}).items()
    ]
    return min(ids, default=None)


def has_bridges(found: Iterable[Mapping[str, Any]]) -> bool:
    """Whether containers can have networks of their own."""
    return any(one.get("Name") == _OWN for one in found)
