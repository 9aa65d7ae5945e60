"""The verb `ca`: a private certificate authority in the controller's data folder. It needs no running controller."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import CliError, NotFoundError
from cli.local.options import DataDirOption, needs
from cli.runner import complain
from cli.transport.connection import current_default_data_dir
from schemas.printing import block

if TYPE_CHECKING:  # comes with an extra
    from http1.tls.authority import Authority

app = typer.Typer()
ca = typer.Typer(no_args_is_help=True, help="Manage a private certificate authority for TLS.")
app.add_typer(ca, name="ca")
NamesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name or address by which the server is reached. Can be repeated. Default: this host's names.",
    ),
]


@ca.command()
def init(data_dir: DataDirOption = None, name: NamesOption = None) -> None:
    """Make an authority and a server's certificate, which the controller uses from its next start on.

    An authority that exists stays, and the server gets a new certificate.
    """
    with _complaining():
        authority = _authority(data_dir)
        now = datetime.now(UTC)
        made = not authority.exists
        if made:
            authority.make(now)
        authority.issue_own(name or _own_names(), now)
        print(block(f"{authority.certificate} {'made' if made else 'kept'}"))
        print(block(f"{authority.server} made"))
        print("restart the controller if it runs without TLS; clients on this host find the rest in client.env")


@ca.command()
def show(data_dir: DataDirOption = None) -> None:
    """Show the authority: its hash, as join tokens carry it, and the server's certificate."""
    with _complaining():
        from http1.tls.issue import describe  # noqa: PLC0415 - comes with an extra

        authority = _authority(data_dir)
        if not authority.exists:
            raise NotFoundError(f"{authority.certificate} does not exist; make one: gpuward ca init")
        own = describe(authority.certificate.read_bytes())
        lines = [
            f"Authority:   {authority.certificate}",
            f"Hash:        {authority.public_key_hash()}",
            f"Ends:        {own.ends:%Y-%m-%d}",
            f"Key:         {authority.key if authority.signs else 'is not here: certificates are not renewed'}",
        ]
        if authority.server.exists():
            server = describe(authority.server.read_bytes())
            lines += [
                f"Server:      {authority.server}",
                f"Names:       {', '.join(server.names)}",
                f"Ends:        {server.ends:%Y-%m-%d}",
            ]
        print(block("\n".join(lines)))


@ca.command()
def issue(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File for the certificate and its key, in PEM.")],
    name: Annotated[
        list[str],
        typer.Option("--name", metavar="NAME", help="Name or address of the server. Can be repeated."),
    ],
    data_dir: DataDirOption = None,
) -> None:
    """Issue a certificate for another server, such as a gateway on another host. It is valid for 90 days."""
    with _complaining():
        from http1.tls.authority import write_private  # noqa: PLC0415 - comes with an extra

        authority = _authority(data_dir)
        if not authority.exists:
            raise NotFoundError(f"{authority.certificate} does not exist; make one: gpuward ca init")
        made = authority.issue(name, datetime.now(UTC))
        write_private(file.absolute(), made.certificate + made.key)
        print(block(f"{file} made; give it to --tls-cert and to --tls-key"))


@contextmanager
def _complaining() -> Iterator[None]:
    with needs("controller"):
        from http1.tls.authority import AuthorityError  # noqa: PLC0415 - comes with an extra
    try:
        yield
    except (AuthorityError, ValueError, OSError) as error:
        complain(CliError(str(error)))
    except CliError as error:
        complain(error)


def _authority(data_dir: Path | None) -> "Authority":
    from http1.tls.authority import Authority  # noqa: PLC0415 - comes with an extra

    return Authority((data_dir or current_default_data_dir()).expanduser().absolute())


def _own_names() -> list[str]:
    """This host's names that are DNS names."""
    from http1.tls.issue import checked_name  # noqa: PLC0415 - comes with an extra

    names = []
    for name in dict.fromkeys((socket.getfqdn(), socket.gethostname())):
        try:
            names.append(checked_name(name.lower()))
        except ValueError:
            continue
    return names
