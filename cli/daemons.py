"""The verbs that run one daemon: controller, gateway, agent.

This file and `up` import the daemons, and only inside functions: client verbs start fast, and a GPU host needs only
`gpuward[agent]`.
"""

from pathlib import Path
from typing import Annotated

import typer

from cli.daemon_options import (
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
from cli.daemon_settings import labels_of, validated
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
    controller_url: Annotated[
        str | None, typer.Option("--controller", metavar="URL[,URL]", help="URL of the controller, or of several.")
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
    proxy_port: Annotated[
        int | None,
        typer.Option("--proxy-port", min=0, max=65535, help="Port of the agent's proxy. Default: any free port."),
    ] = None,
    on_exit: Annotated[
        str | None, typer.Option("--on-exit", help="What to do with engines at a clean exit: stop (default) or keep.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Label of the worker. Can be repeated.")
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            "--cache-dir",
            help="Folder for models of the hub. Default: HF_HUB_CACHE, else in /var/cache/gpuward for root, else in "
            "~/.cache/gpuward.",
        ),
    ] = None,
    cache_limit: Annotated[
        str | None,
        typer.Option("--cache-limit", metavar="SIZE", help="Most that this folder may hold. Default: the disk."),
    ] = None,
    offline: Annotated[
        bool | None, typer.Option("--offline", help="Take models of the hub from this folder only.")
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
    container_user: Annotated[
        str | None,
        typer.Option(
            "--container-user",
            metavar="UID[:GID]",
            help="User as which containers run. Default: as --engine-user says, else the agent's own.",
        ),
    ] = None,
    engine_user: Annotated[
        str | None,
        typer.Option(
            "--engine-user",
            metavar="USER[:GROUP]",
            help="Account as which engines run, or a range of uids FIRST-LAST, of which each instance gets one of its "
            "own. Default: the agent's own.",
        ),
    ] = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    proxy_tls: Annotated[
        str | None,
        typer.Option(
            "--proxy-tls",
            metavar="MODE",
            help="TLS between gateways and this host: on, off, or auto: on unless the controller is on this host too.",
        ),
    ] = None,
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
