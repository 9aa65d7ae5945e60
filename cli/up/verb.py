"""The verb `up`. It passes the controller and the agents to the rest of this folder.

It imports the daemons inside functions only, so that `--help` is fast.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.errors import UsageError
from cli.local.options import (
    DataDirOption,
    GatewayProcessesOption,
    ProxyOption,
    SimulateOption,
    needs,
    validated,
)
from cli.runner import complaining
from cli.terminal.streams import go_on_without_stdout
from cli.transport.connection import DEFAULT_PORT, current_default_data_dir
from cli.up.hosts import CACHE, LOOPBACK

if TYPE_CHECKING:  # slow to import
    from cli.up.startup import AgentStart, Daemons

app = typer.Typer()
_LOGS: Final = "logs"


@app.command()
def up(
    simulate: SimulateOption = None,
    agents: Annotated[int | None, typer.Option("--agents", min=1, max=256, help="Number of simulated hosts.")] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = LOOPBACK,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the API. 0: any free port.")
    ] = DEFAULT_PORT,
    data_dir: DataDirOption = None,
    trusted_proxy: ProxyOption = None,
    gateway_processes: GatewayProcessesOption = None,
    example: Annotated[bool, typer.Option("--example", help="Deploy a small example, unless it exists.")] = False,
) -> None:
    """Run a database, a controller and agents on this host. Ctrl-C stops them and the engines."""
    go_on_without_stdout()  # engines run, and only the end of this process stops them
    with needs("controller,agent"), complaining():
        folder = (data_dir or current_default_data_dir()).expanduser().absolute()
        daemons = _daemons(folder, host, port, trusted_proxy, gateway_processes)
        code = _up(folder, daemons, host=host, port=port, simulate=simulate, agents=agents, example=example)
    raise typer.Exit(code)


def _up(
    folder: Path, daemons: "Daemons", *, host: str, port: int, simulate: Path | None, agents: int | None, example: bool
) -> int:
    import uvloop  # noqa: PLC0415 - comes with an extra

    from cli.up.hosts import HostChoice, read_host_names  # noqa: PLC0415 - as above
    from cli.up.logs import log_to  # noqa: PLC0415 - as above
    from cli.up.many_engines import terminal_question  # noqa: PLC0415 - as above
    from cli.up.next_steps import program_called  # noqa: PLC0415 - see the module's docstring
    from cli.up.progress import Progress  # noqa: PLC0415 - as above
    from cli.up.startup import Options, check_port  # noqa: PLC0415 - as above
    from cli.up.startup import up as run_up  # noqa: PLC0415 - as above

    if simulate is not None:
        read_host_names(simulate)  # refuses an invalid file before anything starts
    check_port(host, port)
    options = Options(
        data_dir=folder,
        host=host,
        port=port,
        hosts=HostChoice(simulate, agents),
        example=example,
        logs=_make_folder(folder) / "gpuward.log",
        program=tuple(program_called(sys.argv[0], sys.executable)),
        question=terminal_question(),
    )
    try:
        log_to(options.logs)
    except OSError as error:
        raise UsageError(f"--data-dir: {options.logs} is not writable: {error}; choose another folder") from error
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_up(options, daemons, Progress()))


def _daemons(folder: Path, host: str, port: int, proxies: list[str] | None, processes: int | None) -> "Daemons":
    from agent.daemon import count_real_gpus, run_agent  # noqa: PLC0415 - see the module's docstring
    from agent.settings import AgentSettings, host_label  # noqa: PLC0415 - as above
    from cli.up.startup import Daemons  # noqa: PLC0415 - as above
    from controller.daemon import make_local_key, make_resignation, run_controller  # noqa: PLC0415 - as above
    from controller.settings import ControllerSettings  # noqa: PLC0415 - as above

    settings = validated(
        ControllerSettings,
        host=host,
        port=port,
        data_dir=folder,
        trusted_proxy=proxies or None,
        gateway_processes=processes,
    )
    key, gateway_log = make_local_key(), folder / _LOGS / "gateway.log"
    engine_user = _engine_user(folder)
    resignation = make_resignation()

    async def controller(stop: asyncio.Event, on_ready: Callable[[str], None]) -> int:
        return await run_controller(
            settings,
            stop=stop,
            on_ready=on_ready,
            local_key=key,
            gateway_log=gateway_log,
            resignation=resignation,
        )

    async def resign() -> None:
        resignation.requested.set()
        await resignation.done.wait()

    async def agent(start: "AgentStart", stop: asyncio.Event) -> int:
        given = validated(
            AgentSettings,
            controller_url=start.controller_url,
            join_token=start.join_token,
            ca=start.ca,
            name=start.host.name,
            simulate=start.host.simulate,
            data_dir=start.data_dir,
            cache_dir=folder / CACHE,
            proxy_host=LOOPBACK,
            advertise=LOOPBACK,
            on_exit="stop",
            engine_user=engine_user,
        )
        return await run_agent(given, stop=stop)

    return Daemons(controller, agent, count_real_gpus, host_label(), key, resign)


def _engine_user(folder: Path) -> str | None:
    """The accounts of engines, which root has; None: this user. Warns where engines of root run as root."""
    from agent.daemon import accounts_for_engines  # noqa: PLC0415 - see the module's docstring

    if os.geteuid() != 0:
        return None
    user, why = accounts_for_engines(folder.parent, Path(sys.executable), Path(sys.executable).resolve())
    if why:
        print(f"Engines run as root and can read all of this host, keys too: {why}", file=sys.stderr)
    return user


def _make_folder(folder: Path) -> Path:
    """Creates the data folder and its folder for logs, which it returns, for this user only."""
    logs = folder / _LOGS
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        logs.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"--data-dir: {folder} is not usable: {error}; choose a writable folder") from error
    if not os.access(logs, os.W_OK):
        raise UsageError(f"--data-dir: {logs} is not writable; choose another folder")
    return logs
