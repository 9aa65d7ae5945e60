"""Brings up controller and agents in one loop, in order, and takes them down again.

The daemons come as functions (`Daemons`), so that this room imports neither of them.
"""

import asyncio
import errno
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.answers import parse, path_of
from cli.client import Api, connect
from cli.connection import CLIENT_ENV, Connection, read_client_env
from cli.errors import CliError, TimedOutError, UsageError
from cli.up.engines import kill_engines
from cli.up.example import run_example
from cli.up.greeting import Place, greeting
from cli.up.hosts import HostChoice, LocalHost, simulated_hosts
from cli.up.parts import Parts
from cli.up.progress import Progress
from cli.waiting import Narrator
from schemas.api.workers import WorkerView

CONTROLLER_WITHIN_S: Final = 90.0
WORKERS_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.2
_AGENTS: Final = "agents"  # folder in the data folder
_TOKEN_EXPIRES_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked `up` for. Port 0 takes any free one."""

    data_dir: Path
    host: str
    port: int
    hosts: HostChoice
    example: bool
    logs: Path
    program: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AgentStart:
    """What one local agent needs. Without a token it uses the credential that its folder holds."""

    host: LocalHost
    data_dir: Path
    controller_url: str
    join_token: str | None


@dataclass(frozen=True, slots=True)
class Daemons:
    """How to run what `up` is made of.

    Attributes:
        controller: runs until the event is set; calls back with its URL once it serves; returns the exit code.
        agent: runs until the event is set; returns the exit code.
        count_real_gpus: how many GPUs this host has; 0 where they cannot be read.
        host_name: the worker's name where it is this host.
    """

    controller: Callable[[asyncio.Event, Callable[[str], None]], Awaitable[int]]
    agent: Callable[[AgentStart, asyncio.Event], Awaitable[int]]
    count_real_gpus: Callable[[], Awaitable[int]]
    host_name: str


async def up(options: Options, daemons: Daemons, progress: Progress) -> int:
    """Runs everything until a signal or a failure; returns the exit code.

    Raises:
        CliError: what was asked for cannot be started at all; nothing was.
    """
    check_port(options.host, options.port)
    agents_dir = options.data_dir / _AGENTS
    parts = Parts(on_hurry=lambda: _hurry(agents_dir, progress))
    with _signals(parts):
        script = asyncio.create_task(_bring_up(options, daemons, parts, progress), name="up")
        try:
            reason = await parts.attend(script)
        finally:
            script.cancel()
            await asyncio.wait({script})
        progress.say("\nStopping ..." if reason is None else f"\ngpuward: {reason}\nstopping; see {options.logs}")
        cut = await parts.stop_all()
    if cut:
        progress.say(f"not ended in time and cut off: {', '.join(cut)}")
    progress.say("Stopped." if reason is None else "stopped")
    return 0 if reason is None and not cut else 1


async def _bring_up(options: Options, daemons: Daemons, parts: Parts, progress: Progress) -> None:
    with progress.step(f"Database, migrations and controller in {options.data_dir}"):
        url = await _start_controller(daemons, parts)
    client_env = options.data_dir / CLIENT_ENV
    key = read_client_env(client_env).get("GPUWARD_API_KEY")
    if key is None:
        raise CliError(f"{client_env} holds no key; remove the file and start again, which makes a new one")
    async with connect(Connection(url, key)) as api:
        hosts = await _choose_hosts(options, daemons, progress)
        with progress.step(f"{len(hosts)} agents" if len(hosts) != 1 else "Agent"):
            for host in hosts:
                await _start_agent(api, host, options, daemons, parts)
            await _until_ready(api, hosts)
        if options.example:
            with progress.step("Example deployment"):
                await run_example(api, Narrator(progress.detail))
    names = [host.name for host in hosts]
    place = Place(url, options.data_dir, options.logs, client_env, names, options.program)
    progress.say(greeting(place, example=options.example))


async def _start_controller(daemons: Daemons, parts: Parts) -> str:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_ready(url: str) -> None:
        if not ready.done():
            ready.set_result(url.rstrip("/"))

    parts.start("the controller", lambda stop: daemons.controller(stop, on_ready))
    try:
        async with asyncio.timeout(CONTROLLER_WITHIN_S):
            return await ready
    except TimeoutError:
        raise TimedOutError(f"the controller does not serve after {CONTROLLER_WITHIN_S:g} s") from None


async def _choose_hosts(options: Options, daemons: Daemons, progress: Progress) -> list[LocalHost]:
    if options.hosts == HostChoice():
        with progress.step("Looking for GPUs"):
            count = await daemons.count_real_gpus()
        if count:
            return [LocalHost(daemons.host_name)]
        progress.say("No NVIDIA GPUs here: simulating hosts instead (everything but their GPUs is real)")
    return simulated_hosts(options.hosts, options.data_dir)


async def _start_agent(api: Api, host: LocalHost, options: Options, daemons: Daemons, parts: Parts) -> None:
    """Starts an agent; it gets a token where the controller does not know its worker, else it has a credential."""
    known = await api.find(path_of("workers", host.name))
    token: str | None = None
    if known is None or known.get("deleted_at") is not None:
        token = (await api.post(path_of("tokens"), {"expires_s": _TOKEN_EXPIRES_S}))["token"]
    start = AgentStart(host, options.data_dir / _AGENTS / host.name, api.url, token)
    parts.start(f"agent {host.name}", lambda stop: daemons.agent(start, stop))


async def _until_ready(api: Api, hosts: list[LocalHost]) -> None:
    waiting = {host.name: "not joined yet" for host in hosts}
    try:
        async with asyncio.timeout(WORKERS_WITHIN_S):
            while waiting:
                for raw in await api.items(path_of("workers")):
                    worker = parse(WorkerView, raw)
                    if worker.status.phase == "ready" and worker.status.connected:
                        waiting.pop(worker.name, None)
                    elif worker.name in waiting:
                        waiting[worker.name] = worker.status.reason or worker.status.phase
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        late = ", ".join(f"{name} ({why})" for name, why in waiting.items())
        raise TimedOutError(f"workers not ready after {WORKERS_WITHIN_S:g} s: {late}") from None


def check_port(host: str, port: int) -> None:
    """Finds out early whether the port is free, since the reason is clearer here than from inside.

    Raises:
        CliError: it is taken, or may not be used.
        UsageError: the host is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError as error:
            raise CliError(f"port {port} may not be used by this user; choose one above 1023 with --port") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CliError(
                    f"port {port} on {host} is in use by another program; choose another one with --port, "
                    "or stop what listens there"
                ) from error
            raise UsageError(f"--host: {host} cannot be listened on: {error}") from error


def _hurry(agents_dir: Path, progress: Progress) -> None:
    """Kills the engines, because an agent that is cut off would leave them running."""
    killed = kill_engines(agents_dir)
    progress.say(f"In haste: {killed} engine processes killed")


@contextmanager
def _signals(parts: Parts) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, parts.ask_to_stop)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
