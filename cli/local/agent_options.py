"""Options of `gpuward agent` alone; those that it shares with other daemons are in `daemon_options`."""

from pathlib import Path
from typing import Annotated

import typer

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
