"""The verbs that run daemons or work on their data: up, controller, gateway, agent, key reset.

Only this file imports the daemons, and only inside functions: client verbs start fast, and a GPU host needs only
`gpuward[agent]`.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.connection import DEFAULT_PORT, current_default_data_dir
from cli.daemon_settings import labels_of, validated
from cli.errors import CliError, UsageError
from cli.runner import complain
from cli.verbs import access

if TYPE_CHECKING:  # slow to import
    from cli.up.startup import AgentStart, Daemons

app = typer.Typer()
PortOption = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help=f"Port of the API. 0: any free port. Default: {DEFAULT_PORT}."),
]
HostOption = Annotated[str | None, typer.Option("--host", help="Address to listen on. Default: 127.0.0.1.")]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Folder for all state. Default: in /var/lib/gpuward for root, else in ~/.local/share/gpuward.",
    ),
]
ProxyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trusted-proxy",
        metavar="CIDR",
        help="Network of reverse proxies whose X-Forwarded-* counts, such as 10.0.0.5/32. Can be repeated.",
    ),
]
SimulateOption = Annotated[
    Path | None, typer.Option("--simulate", metavar="FILE", help="File that describes simulated hosts.")
]
GatewayProcessesOption = Annotated[
    int | None,
    typer.Option("--gateway-processes", min=1, max=64, help="Number of processes of its gateway. Default: 1."),
]
_LOOPBACK: Final = "127.0.0.1"
_LOGS: Final = "logs"
_OWN_PACKAGES: Final = ("agent", "cli", "controller", "gateway", "http1", "schemas")


@app.command()
def up(
    simulate: SimulateOption = None,
    agents: Annotated[int | None, typer.Option("--agents", min=1, max=256, help="Number of simulated hosts.")] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = _LOOPBACK,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the API. 0: any free port.")
    ] = DEFAULT_PORT,
    data_dir: DataDirOption = None,
    trusted_proxy: ProxyOption = None,
    gateway_processes: GatewayProcessesOption = None,
    example: Annotated[bool, typer.Option("--example", help="Deploy a small example, unless it exists.")] = False,
) -> None:
    """Run a database, a controller and agents on this host. Ctrl-C stops them and the engines."""
    try:
        folder = (data_dir or current_default_data_dir()).expanduser().absolute()
        daemons = _daemons(folder, host, port, trusted_proxy, gateway_processes)
        code = _up(folder, daemons, host=host, port=port, simulate=simulate, agents=agents, example=example)
    except ImportError as error:
        complain(_missing(error, "controller,agent"))
    except CliError as error:
        complain(error)
    raise typer.Exit(code)


@app.command()
def controller(
    host: HostOption = None,
    port: PortOption = None,
    data_dir: DataDirOption = None,
    database_url: Annotated[
        str | None, typer.Option("--database-url", help="URL of a PostgreSQL database (prefer GPUWARD_DATABASE_URL).")
    ] = None,
    trusted_proxy: ProxyOption = None,
    gateway: Annotated[
        bool | None,
        typer.Option("--gateway/--no-gateway", help="Run a gateway as a child, which owns the port. Default: yes."),
    ] = None,
    gateway_processes: GatewayProcessesOption = None,
) -> None:
    """Run a controller and its gateway. Without --database-url it runs its own PostgreSQL in the data folder."""
    try:
        from controller.daemon import main  # noqa: PLC0415 - see the module's docstring
        from controller.settings import ControllerSettings  # noqa: PLC0415 - as above
    except ImportError as error:
        complain(_missing(error, "controller"))
    settings = validated(
        ControllerSettings,
        host=host,
        port=port,
        data_dir=data_dir,
        database_url=database_url,
        trusted_proxy=trusted_proxy or None,
        gateway=gateway,
        gateway_processes=gateway_processes,
    )
    raise typer.Exit(main(settings))


@app.command()
def gateway(
    controller_at: Annotated[
        str | None,
        typer.Option("--controller", metavar="ADDRESS", help="URL of the controller's API, or the path of its socket."),
    ] = None,
    host: HostOption = None,
    port: PortOption = None,
    drain: Annotated[
        str | None,
        typer.Option("--drain", metavar="TIME", help="Longest time after SIGTERM for which answers go on."),
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option("--database-url", help="URL of the controller's database (prefer GPUWARD_DATABASE_URL)."),
    ] = None,
    trusted_proxy: ProxyOption = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, max=64, help="Number of processes that serve the port. Default: 1."),
    ] = None,
    listen_fds: Annotated[str, typer.Option("--listen-fds", hidden=True)] = "",
) -> None:
    """Run a gateway: it answers requests to models, and passes all else on to a controller."""
    try:
        from gateway.daemon import main  # noqa: PLC0415 - see the module's docstring
        from gateway.settings import GatewaySettings  # noqa: PLC0415 - as above
    except ImportError as error:
        complain(_missing(error, "controller"))
    settings = validated(
        GatewaySettings,
        controller=controller_at,
        host=host,
        port=port,
        drain=drain,
        database_url=database_url,
        trusted_proxy=trusted_proxy or None,
        gateway_processes=processes,
    )
    raise typer.Exit(main(settings, listen_fds=[int(fd) for fd in listen_fds.split(",") if fd]))


@app.command()
def agent(
    *,
    controller_url: Annotated[
        str | None, typer.Option("--controller", metavar="URL", help="URL of the controller.")
    ] = None,
    join_token: Annotated[
        str | None,
        typer.Option("--join-token", help="Join token, for the first start only (prefer GPUWARD_JOIN_TOKEN)."),
    ] = None,
    join_token_file: Annotated[
        Path | None, typer.Option("--join-token-file", metavar="FILE", help="File that contains the join token.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the worker. Default: the host name.")] = None,
    simulate: SimulateOption = None,
    data_dir: DataDirOption = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            "--advertise",
            metavar="HOST[:PORT]",
            help="Address where the controller reaches this host. Default: the address that the agent connects from.",
        ),
    ] = None,
    on_exit: Annotated[
        str | None, typer.Option("--on-exit", help="What to do with engines at a clean exit: stop (default) or keep.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Label of the worker. Can be repeated.")
    ] = None,
    reserve_host_memory: Annotated[
        str | None,
        typer.Option(
            "--reserve-host-memory",
            metavar="SIZE",
            help="Main memory of the host that instances may not use, such as 8GiB.",
        ),
    ] = None,
    reserve_gpu_memory: Annotated[
        str | None,
        typer.Option(
            "--reserve-gpu-memory", metavar="SIZE", help="Memory of each GPU that instances may not use, such as 1GiB."
        ),
    ] = None,
) -> None:
    """Run an agent on this host. It joins a controller and runs engines."""
    try:
        from agent.daemon import main  # noqa: PLC0415 - see the module's docstring
        from agent.settings import AgentSettings  # noqa: PLC0415 - as above
    except ImportError as error:
        complain(_missing(error, "agent"))
    settings = validated(
        AgentSettings,
        controller_url=controller_url,
        join_token=join_token,
        join_token_file=join_token_file,
        name=name,
        simulate=simulate,
        data_dir=data_dir,
        advertise=advertise,
        on_exit=on_exit,
        labels=labels_of(label) if label else None,
        reserve_host_memory=reserve_host_memory,
        reserve_gpu_memory=reserve_gpu_memory,
    )
    raise typer.Exit(main(settings))


@access.key.command("reset")
def reset_key(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The controller's data folder. Default: as for `controller`.")
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option("--database-url", help="URL of the controller's database (prefer GPUWARD_DATABASE_URL)."),
    ] = None,
) -> None:
    """Create a key of an administrator on the controller's host, and write it to client.env in the data folder.

    Works while the controller runs and while it is stopped. Other keys stay valid.
    """
    try:
        from controller.key_reset import KeyResetError  # noqa: PLC0415 - see the module's docstring
        from controller.key_reset import reset_key as reset  # noqa: PLC0415 - as above
        from controller.settings import ControllerSettings  # noqa: PLC0415 - as above
    except ImportError as error:
        complain(_missing(error, "controller"))
    settings = validated(ControllerSettings, data_dir=data_dir, database_url=database_url)
    try:
        file = reset(settings)
    except KeyResetError as error:
        complain(CliError(str(error)))
    print(f"key of an administrator written to {file}")


def _up(
    folder: Path, daemons: "Daemons", *, host: str, port: int, simulate: Path | None, agents: int | None, example: bool
) -> int:
    import uvloop  # noqa: PLC0415 - comes with an extra

    from cli.up.hosts import HostChoice, read_host_names  # noqa: PLC0415 - as above
    from cli.up.logs import log_to  # noqa: PLC0415 - as above
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
    from controller.daemon import make_local_key, run_controller  # noqa: PLC0415 - as above
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

    async def controller(stop: asyncio.Event, on_ready: Callable[[str], None]) -> int:
        return await run_controller(settings, stop=stop, on_ready=on_ready, local_key=key, gateway_log=gateway_log)

    async def agent(start: "AgentStart", stop: asyncio.Event) -> int:
        given = validated(
            AgentSettings,
            controller_url=start.controller_url,
            join_token=start.join_token,
            name=start.host.name,
            simulate=start.host.simulate,
            data_dir=start.data_dir,
            proxy_host=_LOOPBACK,
            advertise=_LOOPBACK,
            on_exit="stop",
        )
        return await run_agent(given, stop=stop)

    return Daemons(controller, agent, count_real_gpus, host_label(), key)


def _make_folder(folder: Path) -> Path:
    """Creates the data folder, and in it the folder for logs, for this user only. Returns the latter."""
    logs = folder / _LOGS
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        logs.mkdir(exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"--data-dir: {folder} is not usable: {error}; choose a writable folder") from error
    if not os.access(logs, os.W_OK):
        raise UsageError(f"--data-dir: {logs} is not writable; choose another folder")
    return logs


def _missing(error: ImportError, extra: str) -> CliError:
    """The error for a missing library. If one of our own modules is missing, the installation is broken."""
    if (error.name or "").partition(".")[0] in _OWN_PACKAGES:
        return CliError(f"{error}: the installation is incomplete; repeat it: pip install 'gpuward[{extra}]'")
    return CliError(f"{error.name} is not installed; install it: pip install 'gpuward[{extra}]'")
