"""The verbs that run one daemon: controller, gateway, agent.

This file and `up` import the daemons, and only inside functions: client verbs start fast, and a GPU host needs only
`gpuward[agent]`.
"""

from pathlib import Path
from typing import Annotated

import typer

from cli.local.agent_options import (
    AdvertiseOption,
    CacheDirOption,
    CacheLimitOption,
    ContainerUserOption,
    ControllersOption,
    EngineUserOption,
    JoinTokenFileOption,
    JoinTokenOption,
    LabelsOption,
    NameOption,
    OfflineOption,
    OnExitOption,
    ProxyPortOption,
    ProxyTlsOption,
    ReserveGpuMemoryOption,
    ReserveHostMemoryOption,
)
from cli.local.options import (
    CaOption,
    DataDirOption,
    GatewayProcessesOption,
    HostOption,
    PortOption,
    ProxyOption,
    SimulateOption,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    missing_library,
)
from cli.local.settings import labels_of, validated
from cli.runner import complain
from cli.verbs import gateways

app = typer.Typer()
app.add_typer(gateways.gateway, name="gateway")


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
    try:
        from controller.daemon import main  # noqa: PLC0415 - see the module's docstring
        from controller.settings import ControllerSettings  # noqa: PLC0415 - as above
    except ImportError as error:
        complain(missing_library(error, "controller"))
    settings = validated(
        ControllerSettings,
        host=host,
        port=port,
        data_dir=data_dir,
        database_url=database_url,
        trusted_proxy=trusted_proxy or None,
        gateway=gateway,
        socket_only=socket_only,
        gateway_processes=gateway_processes,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_ca=tls_ca,
    )
    raise typer.Exit(main(settings))


@gateways.gateway.callback()
def gateway(  # noqa: PLR0917 - options of a command
    ctx: typer.Context,
    controller_at: Annotated[
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
    database_url: Annotated[
        str | None,
        typer.Option("--database-url", help="URL of the controller's database (prefer GPUWARD_DATABASE_URL)."),
    ] = None,
    trusted_proxy: ProxyOption = None,
    processes: Annotated[
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
    if ctx.invoked_subcommand is not None:
        return
    try:
        from gateway.daemon import main  # noqa: PLC0415 - see the module's docstring
        from gateway.settings import GatewaySettings  # noqa: PLC0415 - as above
    except ImportError as error:
        complain(missing_library(error, "controller"))
    settings = validated(
        GatewaySettings,
        data_dir=data_dir,
        controller=controller_at,
        host=host,
        port=port,
        drain=drain,
        database_url=database_url,
        trusted_proxy=trusted_proxy or None,
        gateway_processes=processes,
        tls_cert=tls_cert,
        tls_key=tls_key,
        ca=ca,
    )
    raise typer.Exit(main(settings, listen_fds=[int(fd) for fd in listen_fds.split(",") if fd]))


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
    label: LabelsOption = None,
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
    try:
        from agent.daemon import main  # noqa: PLC0415 - see the module's docstring
        from agent.settings import AgentSettings  # noqa: PLC0415 - as above
    except ImportError as error:
        complain(missing_library(error, "agent"))
    settings = validated(
        AgentSettings,
        controller_url=controller_url,
        join_token=join_token,
        join_token_file=join_token_file,
        name=name,
        simulate=simulate,
        data_dir=data_dir,
        advertise=advertise,
        proxy_port=proxy_port,
        on_exit=on_exit,
        labels=labels_of(label) if label else None,
        cache_dir=cache_dir,
        cache_limit=cache_limit,
        offline=offline,
        reserve_host_memory=reserve_host_memory,
        reserve_gpu_memory=reserve_gpu_memory,
        container_user=container_user,
        engine_user=engine_user,
        tls_cert=tls_cert,
        tls_key=tls_key,
        proxy_tls=proxy_tls,
        ca=ca,
    )
    raise typer.Exit(main(settings))
