"""The verb `join-token`."""

from typing import Annotated, Final

import typer

from cli.objects.kinds import TOKENS
from cli.printing.output import Format, ListOutputOption
from cli.runner import client, delete, parse_labels, parse_seconds
from cli.transport.paths import path_of
from cli.verbs.get import list_all
from schemas.api.access import MAX_TOKEN_USES

app = typer.Typer()
_tokens = typer.Typer(no_args_is_help=True, help="Manage the tokens with which agents join.")
app.add_typer(_tokens, name="join-token")
_DEFAULT_EXPIRY_S: Final = 3600.0
NetworksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--advertise-network",
        metavar="CIDR",
        help="Network within which its agent may --advertise another address than the one that it connects from. May "
        "be given several times.",
    ),
]


@_tokens.command("create")
def create_token(
    ctx: typer.Context,
    expires_s: Annotated[
        float,
        typer.Option(
            "--expires",
            parser=parse_seconds,
            metavar="DURATION",
            show_default="1h",
            help="Time until the token expires.",
        ),
    ] = _DEFAULT_EXPIRY_S,
    uses: Annotated[
        int, typer.Option("--uses", min=1, max=MAX_TOKEN_USES, metavar="N", help="Number of agents that may join.")
    ] = 1,
    name: Annotated[
        str | None, typer.Option("--name", help="Only worker that may join with it; needed for a deleted one's name.")
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY=VALUE",
            help="Trusted label of the workers that join with it. May be given several times.",
        ),
    ] = None,
    networks: NetworksOption = None,
) -> None:
    """Create a token and print it. It is shown only once, and joins one agent or as many as `--uses` says."""
    with client(ctx) as api:
        body: dict[str, object] = {"expires_s": expires_s}
        given: dict[str, object] = {
            "uses": uses if uses > 1 else None,
            "name": name,
            "labels": parse_labels(labels or ()),
            "advertise_networks": networks,
        }
        body |= {field: value for field, value in given.items() if value}  # older controllers refuse these fields
        print(api.post(path_of(TOKENS.plural), body)["token"])


@_tokens.command("list")
def list_tokens(ctx: typer.Context, output: ListOutputOption = Format.TABLE) -> None:
    """List tokens and their states."""
    list_all(ctx, TOKENS, output)


@_tokens.command("revoke")
def revoke_token(
    ctx: typer.Context, token_id: Annotated[str, typer.Argument(metavar="ID", help="Id, as `list` prints it.")]
) -> None:
    """Revoke a token. Agents that joined with it stay."""
    delete(ctx, (TOKENS.plural, token_id), f"token/{token_id} revoked")
