"""Options that several verbs of daemons share, and the error where their libraries are missing."""

from pathlib import Path
from typing import Annotated, Final

import typer

from cli.errors import CliError
from cli.transport.connection import DEFAULT_PORT

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
TlsCertOption = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="Certificate of the port, in PEM. With it the port speaks TLS."),
]
TlsKeyOption = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="Key of the certificate, in PEM, without a passphrase.")
]
TlsCaOption = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="Authority of the certificate, where systems do not know it."),
]
CaOption = Annotated[
    Path | None,
    typer.Option("--ca", metavar="FILE", help="Authority of the controller's certificate. Default: the system's."),
]
_OWN_PACKAGES: Final = ("agent", "cli", "controller", "gateway", "http1", "schemas")


def missing_library(error: ImportError, extra: str) -> CliError:
    """The error for a missing library. If one of our own modules is missing, the installation is broken."""
    if (error.name or "").partition(".")[0] in _OWN_PACKAGES:
        return CliError(f"{error}: the installation is incomplete; repeat it: pip install 'gpuward[{extra}]'")
    return CliError(f"{error.name} is not installed; install it: pip install 'gpuward[{extra}]'")
