"""Options that several verbs of daemons share, settings from them, and errors about missing libraries."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cli.errors import CliError, UsageError
from cli.runner import complain
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
ControllerDataOption = Annotated[
    Path | None, typer.Option("--data-dir", help="The controller's data folder. Default: as for `controller`.")
]
ControllerDatabaseOption = Annotated[
    str | None, typer.Option("--database-url", help="URL of the controller's database (prefer GPUWARD_DATABASE_URL).")
]
_OWN_PACKAGES: Final = ("agent", "cli", "controller", "gateway", "http1", "schemas")


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """For imports of an extra's libraries. Ends the program where one is missing."""
    try:
        yield
    except ImportError as error:
        install = f"pip install 'gpuward[{extra}]'"
        if (error.name or "").partition(".")[0] in _OWN_PACKAGES:
            complain(CliError(f"{error}: the installation is incomplete; repeat it: {install}"))
        complain(CliError(f"{error.name} is not installed; install it: {install}"))


def validated(settings: Callable[..., Any], **given: object) -> Any:
    """Settings from flags, else the environment, else defaults. Ends the program where they are invalid."""
    from pydantic import ValidationError  # noqa: PLC0415 - settings have imported it

    try:
        return settings(**{name: value for name, value in given.items() if value is not None and value != []})
    except ValidationError as error:
        lines = [f"  {_option(problem['loc'])}: {problem['msg']}" for problem in error.errors()]
        complain(UsageError("\n".join(["the settings are not valid:", *lines])))


def _option(where: tuple[int | str, ...]) -> str:
    name = str(where[0]) if where else "(settings)"
    flag = {"controller_url": "--controller", "labels": "--label"}.get(name, "--" + name.lower().replace("_", "-"))
    return f"{flag} ({'.'.join(str(part) for part in where)})"
