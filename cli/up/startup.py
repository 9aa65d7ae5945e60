"""Starts the controller and the agents of `up` in one event loop, in order, and stops them.

The daemons are passed as functions (`Daemons`), so that this module does not import them.
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

from cli.errors import CliError, RefusedError, TimedOutError, UsageError
from cli.transport.client import Api, connected
from cli.transport.connection import CLIENT_ENV, Connection, read_client_env
from cli.transport.paths import parse, path_of
from cli.up.example import run_example
from cli.up.hosts import AGENTS, HostChoice, LocalHost, simulated_hosts, write_local_agents
from cli.up.kill_engines import kill_engines
from cli.up.many_engines import Question, confirm_start, watch
from cli.up.next_steps import UpInfo, ready_text
from cli.up.progress import Progress
from cli.up.supervisor import Supervisor
from cli.waiting.wait import ProgressLog
from schemas.api.workers import WorkerView

CONTROLLER_WITHIN_S: Final = 90.0
WORKERS_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.2
_TOKEN_EXPIRES_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `up`. Port 0: any free port. `question`: None without a terminal."""

    data_dir: Path
    host: str
    port: int
    hosts: HostChoice
    example: bool
    logs: Path
    program: tuple[str, ...]
    question: Question | None = None


@dataclass(frozen=True, slots=True)
class AgentStart:
    """The start of a local agent. Without a token it uses the credential in its folder. `ca`: None for the system's."""

    host: LocalHost
    data_dir: Path
    controller_url: str
    join_token: str | None
    ca: Path | None = None


async def _leads_nothing() -> None:
    """For a controller that does not lead."""


@dataclass(frozen=True, slots=True)
class Daemons:
    """The functions that run the daemons.

    Attributes:
        controller: runs until the event is set; calls back with its URL when it serves; returns the exit code.
        agent: runs until the event is set; returns the exit code.
        count_real_gpus: number of GPUs of this host; 0 if they cannot be read.
        host_name: name of the worker if it is this host.
        key: of an administrator, for this process's own requests. It is not stored.
        resign: ends the controller's leadership, while it continues to serve; returns once that is done.
    """

    controller: Callable[[asyncio.Event, Callable[[str], None]], Awaitable[int]]
    agent: Callable[[AgentStart, asyncio.Event], Awaitable[int]]
    count_real_gpus: Callable[[], Awaitable[int]]
    host_name: str
    key: str
    resign: Callable[[], Awaitable[None]] = _leads_nothing


async def up(options: Options, daemons: Daemons, progress: Progress) -> int:
    """Runs everything until a signal or a failure; returns the exit code. Raises `CliError` before the start."""
    check_port(options.host, options.port)
    agents_dir = options.data_dir / AGENTS
    supervisor = Supervisor(on_force=lambda: _kill_engines(agents_dir, progress), before_stop=daemons.resign)
    with _signals(supervisor):
        script = asyncio.create_task(_bring_up(options, daemons, supervisor, progress), name="up")
        try:
            try:
                reason = await supervisor.wait(script)
            finally:
                script.cancel()
                await asyncio.wait({script})
            progress.print("\nStopping ..." if reason is None else f"\ngpuward: {reason}\nstopping; see {options.logs}")
        finally:  # also where a print fails
            late = await supervisor.stop_all()
    if late:
        progress.print(f"did not stop in time and was cancelled: {', '.join(late)}")
    progress.print("Stopped." if reason is None else "stopped")
    return 0 if reason is None and not late else 1


async def _bring_up(options: Options, daemons: Daemons, supervisor: Supervisor, progress: Progress) -> None:
    with progress.step(f"Database, migrations and controller in {options.data_dir}"):
        url = await _start_controller(daemons, supervisor)
    ca = _authority(options)
    with connected(Connection(url, daemons.key, ca)) as api:  # its requests run in threads, which end when it closes
        await confirm_start(api, progress.print, options.question)
        hosts = await _choose_hosts(options, daemons, progress)
        write_local_agents(options.data_dir, hosts)
        with progress.step(f"{len(hosts)} agents" if len(hosts) != 1 else "Agent"):
            for host in hosts:
                await _start_agent(api, host, options, daemons, supervisor)
            await _wait_until_ready(api, hosts)
        if options.example:
            with progress.step("Example deployment"):
                await asyncio.to_thread(run_example, api, ProgressLog(progress.detail))
        names = [host.name for host in hosts]
        client_env = options.data_dir / CLIENT_ENV
        valid = await asyncio.to_thread(
            _is_valid, Connection(url, read_client_env(client_env).get("GPUWARD_API_KEY"), ca)
        )
        info = UpInfo(url, options.data_dir, options.logs, client_env, names, options.program, key_is_valid=valid)
        progress.print(ready_text(info, example=options.example))
        await watch(api, progress.print)


def _authority(options: Options) -> Path | None:
    """The authority that the running controller has written to client.env; None: a known one, or no TLS."""
    file = read_client_env(options.data_dir / CLIENT_ENV).get("GPUWARD_CA")
    return None if file is None else Path(file)


def _is_valid(connection: Connection) -> bool:
    try:
        with connected(connection) as api:
            api.items(path_of("workers"), limit=1)
    except RefusedError as refusal:
        return refusal.code != "unauthenticated"
    return True


async def _start_controller(daemons: Daemons, supervisor: Supervisor) -> str:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_ready(url: str) -> None:
        if not ready.done():
            ready.set_result(url.rstrip("/"))

    supervisor.start("the controller", lambda stop: daemons.controller(stop, on_ready))
    try:
        async with asyncio.timeout(CONTROLLER_WITHIN_S):
            return await ready
    except TimeoutError:
        raise TimedOutError(f"the controller did not serve within {CONTROLLER_WITHIN_S:g} s") from None


async def _choose_hosts(options: Options, daemons: Daemons, progress: Progress) -> list[LocalHost]:
    if options.hosts == HostChoice():
        with progress.step("Looking for GPUs"):
            count = await daemons.count_real_gpus()
        if count:
            return [LocalHost(daemons.host_name)]
        progress.print("No NVIDIA GPUs found: simulating hosts instead (only the GPUs are simulated)")
    return simulated_hosts(options.hosts, options.data_dir)


async def _start_agent(api: Api, host: LocalHost, options: Options, daemons: Daemons, supervisor: Supervisor) -> None:
    """Starts an agent, with a join token if the controller does not know its worker."""
    token = await asyncio.to_thread(_token_for, api, host)
    start = AgentStart(host, options.data_dir / AGENTS / host.name, api.url, token, _authority(options))
    supervisor.start(f"agent {host.name}", lambda stop: daemons.agent(start, stop))


def _token_for(api: Api, host: LocalHost) -> str | None:
    known = api.find(path_of("workers", host.name))
    if known is not None and known.get("deleted_at") is None:
        return None
    return str(api.post(path_of("tokens"), {"expires_s": _TOKEN_EXPIRES_S, "name": host.name})["token"])


async def _wait_until_ready(api: Api, hosts: list[LocalHost]) -> None:
    waiting = {host.name: "not joined yet" for host in hosts}
    try:
        async with asyncio.timeout(WORKERS_WITHIN_S):
            while waiting:
                for raw in await asyncio.to_thread(api.items, path_of("workers")):
                    worker = parse(WorkerView, raw)
                    if worker.status.phase == "ready" and worker.status.connected:
                        waiting.pop(worker.name, None)
                    elif worker.name in waiting:
                        waiting[worker.name] = worker.status.reason or worker.status.phase
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        late = ", ".join(f"{name} ({why})" for name, why in waiting.items())
        raise TimedOutError(f"workers not ready within {WORKERS_WITHIN_S:g} s: {late}") from None


def check_port(host: str, port: int) -> None:
    """An early check, since its message is clearer than a later one. Raises `CliError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError as error:
            raise CliError(f"this user may not use port {port}; choose one above 1023 with --port") from error
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CliError(
                    f"port {port} on {host} is in use; choose another one with --port, "
                    "or stop the program that listens there"
                ) from error
            raise UsageError(f"--host: cannot listen on {host}: {error}") from error


def _kill_engines(agents_dir: Path, progress: Progress) -> None:
    # a cancelled agent leaves its engines running
    killed = kill_engines(agents_dir)
    progress.print(f"Killed {killed} engine processes to stop quickly")


@contextmanager
def _signals(supervisor: Supervisor) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    hung_up = asyncio.Event()
    handlers = {signal.SIGINT: supervisor.request_stop, signal.SIGTERM: supervisor.request_stop}

    def hang_up() -> None:
        # a hang-up often comes twice, from the kernel and from the shell, and does not force the stop
        if not hung_up.is_set():
            hung_up.set()
            supervisor.request_stop()

    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else under nohup
        handlers[signal.SIGHUP] = hang_up
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
