"""Findings about the host: cgroups, ports, disk, limits, engines. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agent.decide.doctor.finding import Finding, fails, ok, warning
from agent.decide.engine_accounts import UNUSED_UIDS
from agent.decide.engine_environment import SETTING, format_names

_GIB: Final = 2**30
_LEAST_FREE: Final = 1 * _GIB
_ENOUGH_FREE: Final = 50 * _GIB  # a model of 20 billion parameters or so, and logs
_LEAST_FILES: Final = 4_096
MODELS: Final = "models of the hub"
_LEAST_SHM: Final = 1 * _GIB
_SHM: Final = "/dev/shm"  # noqa: S108 - only its size is read
_WANTED_CONTROLLERS: Final = ("memory", "pids")
_INSTALL: Final = "Install one where the agent runs, such as `pip install vllm`, or llama-server."


@dataclass(frozen=True, slots=True)
class CgroupProbe:
    """Control groups."""

    unified: bool  # version 2 is mounted
    controllers: frozenset[str] = frozenset()  # of version 2
    delegated: bool | None = None  # the running agent may make groups next to its own; None: no agent runs


@dataclass(frozen=True, slots=True)
class IsolationProbe:
    """The accounts of engines."""

    root: bool  # the agent's user is root
    engine_user: str | None = None  # the setting; None: engines run as the agent
    each: bool = False  # each instance gets an account of its own
    stopped_at: str = ""  # a folder that they need and may not enter
    error: str = ""  # why the setting cannot be used here


@dataclass(frozen=True, slots=True)
class EnvironmentProbe:
    """Variables of the agent that engines do not get."""

    held_back: tuple[str, ...]  # sorted names
    running: bool  # of the running agent; else of this command and of the agent's file
    readable: bool = True  # this user may read it


@dataclass(frozen=True, slots=True)
class AgentProbe:
    """The agent of a data folder."""

    data_dir: str
    readable: bool = True  # this user may read it; a missing folder counts as readable
    pid: int | None = None  # of the running agent; None: none runs, or it is hidden from this user
    worker: str | None = None  # its name; None: it has not joined yet
    port: int | None = None  # of its proxy at its last start
    connected: bool | None = None  # to its controller; None: unknown


@dataclass(frozen=True, slots=True)
class PortProbe:
    """One port of this host."""

    port: int  # 0: the agent takes any free port
    listening: bool = False  # a process listens there
    by: str = ""  # that process, by name and pid; empty: unknown
    is_agent: bool = False  # it answers as an agent
    error: str = ""  # why this user cannot listen there


@dataclass(frozen=True, slots=True)
class EnginePorts:
    """Ports of engines: `first` to `last`, those in use, and the first port that the kernel gives to connections."""

    first: int
    last: int
    in_use: int
    outgoing_from: int | None


@dataclass(frozen=True, slots=True)
class DiskProbe:
    """The disk of a folder."""

    what: str  # the folder's purpose
    folder: str
    free_bytes: int  # for this user
    files_left: float | None = None  # share of free inodes; None: unlimited
    writable: bool = True  # this user may create the folder, or files in it


@dataclass(frozen=True, slots=True)
class LimitProbe:
    """Open files of a process, the size of /dev/shm (None: missing), and the number of GPUs."""

    open_files: int
    shm_bytes: int | None
    gpus: int


@dataclass(frozen=True, slots=True)
class EngineProbe:
    """An engine's program, with its version or the error."""

    name: str
    program: str
    version: str = ""
    error: str = ""
    on_cpu: bool = False  # the build uses no GPU


def judge_cgroups(probe: CgroupProbe) -> Finding:
    """Whether the kernel can enforce engines' claims of host memory."""
    without = "engines run in process groups, and no limit of memory holds them"
    if not probe.unified:
        remedy = "Start the kernel with systemd.unified_cgroup_hierarchy=1, or use a newer distribution."
        return warning("cgroups", f"no cgroup v2: {without}", remedy)
    missing = [name for name in _WANTED_CONTROLLERS if name not in probe.controllers]
    if missing:
        remedy = "Give version 2 all controllers: start the kernel with systemd.unified_cgroup_hierarchy=1."
        return warning("cgroups", f"cgroup v2 lacks {' and '.join(missing)}: {without}", remedy)
    if probe.delegated is False:
        remedy = "Run it by its systemd unit (systemd 254 or newer), or name a folder: GPUWARD_AGENT_CGROUP."
        return warning("cgroups", f"no control group was delegated to the running agent: {without}", remedy)
    return ok("cgroups", "cgroup v2 with limits of memory and processes")


def judge_isolation(probe: IsolationProbe) -> Finding:
    """Whether engines cannot read what the agent can."""
    if probe.error:
        return fails("isolation", probe.error, "Correct --engine-user, or GPUWARD_AGENT_ENGINE_USER.")
    if probe.stopped_at:
        remedy = f"Let other accounts pass (`chmod o+x {probe.stopped_at}`), or move it by --data-dir or --cache-dir."
        return fails("isolation", f"engines run as {probe.engine_user}, which may not enter {probe.stopped_at}", remedy)
    if probe.engine_user is not None:
        each = ", each instance as one of its own" if probe.each else ", all as the same: they can read one another"
        return ok("isolation", f"engines run as {probe.engine_user}{each}")
    if probe.root:
        text = "engines run as root: a deployment's program can read the agent's credential and every file of this host"
        remedy = f"Give each instance an account of its own: --engine-user {UNUSED_UIDS}. See docs/access.md."
        return warning("isolation", text, remedy)
    text = "engines run as the agent's own user and can read its credential, and the secrets of other engines"
    return warning("isolation", text, "Run the agent as root with --engine-user. See docs/access.md.")


def judge_environment(probe: EnvironmentProbe) -> Finding:
    """Variables that engines do not get; most engines need few."""
    if not probe.readable:
        text = "the running agent's environment is not readable for this user"
        return warning("environment", text, "Run `gpuward doctor` as the agent's user, such as root.")
    where = "of the running agent's variables" if probe.running else "of the variables here"
    if not probe.held_back:
        return ok("environment", f"engines get all {where}")
    text = f"{where}, engines do not get {format_names(probe.held_back)}; list what one needs in {SETTING}"
    return ok("environment", text)


def judge_agent(agent: AgentProbe) -> Finding:
    if not agent.readable:
        remedy = "Run `gpuward doctor` as the agent's user, such as root, or name its --data-dir."
        return warning("agent", f"{agent.data_dir} is not readable for this user", remedy)
    name = f"worker {agent.worker}" if agent.worker else "it has not joined yet"
    if agent.pid is None:
        return ok("agent", f"no agent runs on {agent.data_dir} ({name})")
    if agent.connected is False:
        text = f"the agent runs (pid {agent.pid}, {name}), but is not connected to its controller"
        return warning("agent", text, "See its log, and the finding about the controller.")
    return ok("agent", f"the agent runs (pid {agent.pid}, {name})" + (", connected" if agent.connected else ""))


def judge_port(port: PortProbe, agent: AgentProbe) -> Finding:
    """Whether the agent's proxy can have its port, which its running agent may hold."""
    if port.port == 0:
        return ok("port", "the agent takes any free port at its first start, and that one again later")
    if port.error:
        remedy = "Choose another with --proxy-port, or GPUWARD_AGENT_PROXY_PORT."
        return fails("port", f"port {port.port} cannot be used: {port.error}", remedy)
    if not port.listening:
        return ok("port", f"port {port.port} is free for the agent")
    own = agent.pid is not None and agent.port == port.port
    if own or (port.is_agent and (agent.pid is not None or not agent.readable)):
        return ok("port", f"port {port.port} is the agent's")
    by = "an agent with another data folder" if port.is_agent else port.by or "another process"
    remedy = "End that process, or choose another port with --proxy-port or GPUWARD_AGENT_PROXY_PORT."
    return fails("port", f"port {port.port} is in use by {by}", remedy)


def judge_engine_ports(ports: EnginePorts) -> Finding:
    """Whether engines have ports that outgoing connections do not take."""
    size = ports.last - ports.first + 1
    if ports.in_use > size // 2:
        text = f"{ports.in_use} of the {size} ports for engines ({ports.first} to {ports.last}) are in use"
        return warning("ports", text, "End what listens there, or give it other ports.")
    if ports.outgoing_from is not None and ports.outgoing_from <= ports.last:
        text = f"outgoing connections may take ports of engines: they begin at {ports.outgoing_from}"
        return warning("ports", text, "Set `sysctl net.ipv4.ip_local_port_range='32768 60999'`.")
    return ok("ports", f"engines have ports {ports.first} to {ports.last}; {ports.in_use} are in use")


def judge_disk(disk: DiskProbe) -> Finding:
    free = f"{disk.free_bytes / _GIB:.1f} GiB free"
    where = f"{disk.folder} ({disk.what})"
    if not disk.writable:
        remedy = "Run the agent as another user, such as root, or choose another folder, as with --data-dir."
        return fails("disk", f"{where} is not writable for this user", remedy)
    if disk.free_bytes < _LEAST_FREE:
        return fails("disk", f"{where}: {free}", "Free some space: logs and the journal need it.")
    if disk.files_left is not None and disk.files_left < 0.01:  # noqa: PLR2004 - the last percent
        return fails("disk", f"{where}: no more files can be made", "Remove files: the file system has no free inodes.")
    if disk.what == MODELS and disk.free_bytes < _ENOUGH_FREE:
        remedy = "Models may not fit; choose a larger disk: --cache-dir, or GPUWARD_AGENT_CACHE_DIR."
        return warning("disk", f"{where}: {free}", remedy)
    return ok("disk", f"{where}: {free}")


def judge_limits(limits: LimitProbe) -> Iterator[Finding]:
    if limits.open_files < _LEAST_FILES:
        text = f"a process may open {limits.open_files} files: the agent's proxy needs two for each request"
        yield warning("limits", text, "Set LimitNOFILE=65536 in the unit, or `ulimit -n 65536`.")
    else:
        yield ok("limits", f"a process may open {limits.open_files} files")
    if limits.gpus > 1 and (limits.shm_bytes or 0) < _LEAST_SHM:
        size = "is missing" if limits.shm_bytes is None else f"has {limits.shm_bytes / _GIB:.1f} GiB"
        text = f"{_SHM} {size}: engines on several GPUs exchange data there"
        yield warning("limits", text, "Mount it with 1 GiB for each GPU or more; in a container: --shm-size.")


def judge_engines(engines: Sequence[EngineProbe]) -> Iterator[Finding]:
    if not engines:
        text = "no model server found; only `custom` and `simulated` can run"
        yield warning("engine", text, _INSTALL)
    for engine in engines:
        if engine.error:
            text = f"{engine.name} ({engine.program}) does not say its version: {engine.error}"
            yield warning("engine", text, "Run it with --version, and repair its installation.")
        elif engine.on_cpu:
            text = f"{engine.name} {engine.version} ({engine.program}) uses no GPU: it lists no device"
            yield warning("engine", text, "Install a build with CUDA where it is to run on GPUs.")
        else:
            yield ok("engine", f"{engine.name} {engine.version} ({engine.program})")
