"""The verbs that run a daemon: controller, gateway, agent; and those about gateways: list, forget.

This file and `up` import the daemons, and only inside functions: client verbs start fast, and a GPU host needs only
`gpuward[agent]`.
"""

from pathlib import Path
from typing import Annotated

import typer

from cli.local.options import (
    CaOption,
    ControllerDatabaseOption,
    DataDirOption,
    GatewayProcessesOption,
    HostOption,
    PortOption,
    ProxyOption,
    SimulateOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    needs,
    validated,
)
from cli.objects.kinds import GATEWAYS
from cli.printing.output import Format, ListOutputOption
from cli.runner import complaining, delete, parse_labels
from cli.verbs.get import list_all

app = typer.Typer()
_gateway = typer.Typer(invoke_without_command=True)
app.add_typer(_gateway, name="gateway")
ControllersOption = Annotated[
    str | None, typer.Option("--controller", metavar="URL[,URL]", help="URL of the controller, or of several.")
]
JoinTokenOption = Annotated[
    str | None,
    typer.Option("--join-token", help="Join token, for the first start only (prefer GPUWARD_JOIN_TOKEN)."),
]
JoinTokenFileOption = Annotated[
    Path | None, typer.Option("--join-token-file", metavar="FILE", help="File that contains the join token.")
]
NameOption = Annotated[str | None, typer.Option("--name", help="Name of the worker. Default: the host name.")]
AdvertiseOption = Annotated[
    str | None,
    typer.Option(
        "--advertise",
        metavar="HOST[:PORT]",
        help="Address where the controller reaches this host. Default: the address that the agent connects from.",
    ),
]
ProxyPortOption = Annotated[
    int | None,
    typer.Option("--proxy-port", min=0, max=65535, help="Port of the agent's proxy. Default: any free port."),
]
OnExitOption = Annotated[
    str | None, typer.Option("--on-exit", help="What to do with engines at a clean exit: stop (default) or keep.")
]
LabelsOption = Annotated[
    list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Label of the worker. Can be repeated.")
]
CacheDirOption = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        help="Folder for models of the hub. Default: HF_HUB_CACHE, else in /var/cache/gpuward for root, else in "
        "~/.cache/gpuward.",
    ),
]
CacheLimitOption = Annotated[
    str | None,
    typer.Option("--cache-limit", metavar="SIZE", help="Most that this folder may hold. Default: the disk."),
]
OfflineOption = Annotated[bool | None, typer.Option("--offline", help="Take models of the hub from this folder only.")]
ReserveHostMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--reserve-host-memory",
        metavar="SIZE",
        help="Main memory of the host that instances may not use, such as 8GiB.",
    ),
]
ReserveGpuMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--reserve-gpu-memory", metavar="SIZE", help="Memory of each GPU that instances may not use, such as 1GiB."
    ),
]
ContainerUserOption = Annotated[
    str | None,
    typer.Option(
        "--container-user",
        metavar="UID[:GID]",
        help="User as which containers run. Default: as --engine-user says, else the agent's own.",
    ),
]
EngineUserOption = Annotated[
    str | None,
    typer.Option(
        "--engine-user",
        metavar="USER[:GROUP]",
        help="Account as which engines run, or a range of uids FIRST-LAST, of which each instance gets one of its "
        "own. Default: the agent's own.",
    ),
]
ProxyTlsOption = Annotated[
    str | None,
    typer.Option(
        "--proxy-tls",
        metavar="MODE",
        help="TLS between gateways and this host: on, off, or auto: on unless the controller is on this host too.",
    ),
]


@app.command()
def controller(  # noqa: PLR0917 - options of a command
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
    socket_only: Annotated[
        bool | None,
        typer.Option(
            "--socket-only",
            help="With --no-gateway: serve the API on the socket in the data folder alone. A gateway service of this "
            "host owns --host and --port.",
        ),
    ] = None,
    gateway_processes: GatewayProcessesOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    tls_ca: TlsCaOption = None,
) -> None:
    """Run a controller and its gateway. Without --database-url it runs its own PostgreSQL in the data folder."""
    given = dict(locals())
    with needs("controller"):
        from controller.daemon import main  # noqa: PLC0415 - see the module's docstring
        from controller.settings import ControllerSettings  # noqa: PLC0415 - as above
    raise typer.Exit(main(validated(ControllerSettings, **given)))


@_gateway.callback()
def gateway(  # noqa: PLR0917 - options of a command
    ctx: typer.Context,
    controller: Annotated[
        str | None,
        typer.Option(
            "--controller",
            metavar="ADDRESS",
            help="URL of the controller's API, those of several with commas, or the path of its socket.",
        ),
    ] = None,
    host: HostOption = None,
    port: PortOption = None,
    drain: Annotated[
        str | None,
        typer.Option("--drain", metavar="TIME", help="Longest time after SIGTERM for which answers go on."),
    ] = None,
    database_url: ControllerDatabaseOption = None,
    trusted_proxy: ProxyOption = None,
    gateway_processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, max=64, help="Number of processes that serve the port. Default: 1."),
    ] = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    ca: CaOption = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            help="Data folder of a controller on this host, in place of --controller: its socket, its database and "
            "its certificate are found there.",
        ),
    ] = None,
    listen_fds: Annotated[str, typer.Option("--listen-fds", hidden=True)] = "",
) -> None:
    """Run a gateway: it answers requests to models, and passes all else on to a controller."""
    given = dict(locals())
    del given["ctx"], given["listen_fds"]
    if ctx.invoked_subcommand is not None:
        return
    with needs("controller"):
        from gateway.daemon import main  # noqa: PLC0415 - see the module's docstring
        from gateway.settings import GatewaySettings  # noqa: PLC0415 - as above
    settings = validated(GatewaySettings, **given)
    raise typer.Exit(main(settings, listen_fds=[int(fd) for fd in listen_fds.split(",") if fd]))


@_gateway.command("list")
def list_gateways(ctx: typer.Context, output: ListOutputOption = Format.TABLE) -> None:
    """List gateways, each process by itself, and whether they report."""
    list_all(ctx, GATEWAYS, output)


@_gateway.command()
def forget(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of a process, or of a gateway with all its silent processes."),
    ],
) -> None:
    """Forget a silent gateway that is gone for good, so that replicas can be removed again."""
    delete(ctx, (GATEWAYS.plural, name), f"gateway/{name} forgotten")


@app.command()
def agent(
    *,
    controller_url: ControllersOption = None,
    join_token: JoinTokenOption = None,
    join_token_file: JoinTokenFileOption = None,
    name: NameOption = None,
    simulate: SimulateOption = None,
    data_dir: DataDirOption = None,
    advertise: AdvertiseOption = None,
    proxy_port: ProxyPortOption = None,
    on_exit: OnExitOption = None,
    labels: LabelsOption = None,
    cache_dir: CacheDirOption = None,
    cache_limit: CacheLimitOption = None,
    offline: OfflineOption = None,
    reserve_host_memory: ReserveHostMemoryOption = None,
    reserve_gpu_memory: ReserveGpuMemoryOption = None,
    container_user: ContainerUserOption = None,
    engine_user: EngineUserOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    proxy_tls: ProxyTlsOption = None,
    ca: CaOption = None,
) -> None:
    """Run an agent on this host. It joins a controller and runs engines."""
    given = dict(locals())
    with complaining():
        given["labels"] = parse_labels(labels or (), "zone=a") or None
    with needs("agent"):
        from agent.daemon import main  # noqa: PLC0415 - see the module's docstring
        from agent.settings import AgentSettings  # noqa: PLC0415 - as above
    raise typer.Exit(main(validated(AgentSettings, **given)))
