"""Verbs about credentials: join-token, key, secret."""

import sys
from typing import TYPE_CHECKING, Annotated, Final, get_args

import typer

from cli.api import path_of
from cli.errors import UsageError
from cli.kinds import KEYS, TOKENS, Kind
from cli.output import Format
from cli.runner import OutputOption, delete, parse_seconds, run
from cli.verbs.get import print_objects
from schemas.api.access import Role

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
join_token = typer.Typer(no_args_is_help=True, help="Manage the one-time tokens with which agents join.")
key = typer.Typer(no_args_is_help=True, help="Manage API keys.")
secret = typer.Typer(no_args_is_help=True, help="Manage secrets for `env: {NAME: {secret: ...}}` in manifests.")
app.add_typer(join_token, name="join-token")
app.add_typer(key, name="key")
app.add_typer(secret, name="secret")

ROLES: Final = get_args(Role)
_DEFAULT_EXPIRY_S: Final = 3600.0
_MAX_SECRET: Final = 64 * 1024
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id, as `list` prints it.")]
SecretArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the secret.")]


@join_token.command("create")
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
) -> None:
    """Create a token and print it. It is shown only once, and joins one agent."""

    async def work(api: "Api") -> None:
        print((await api.post(path_of(TOKENS.plural), {"expires_s": expires_s}))["token"])

    run(ctx, work)


@join_token.command("list")
def list_tokens(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """List tokens and their states."""
    _list(ctx, TOKENS, output)


@join_token.command("revoke")
def revoke_token(ctx: typer.Context, token_id: IdArgument) -> None:
    """Revoke a token. Agents that joined with it stay."""
    delete(ctx, (TOKENS.plural, token_id), f"token/{token_id} revoked")


@key.command("create")
def create_key(
    ctx: typer.Context,
    role: Annotated[str, typer.Option("--role", help=f"Role of the key: {', '.join(ROLES)}.")],
    name: Annotated[str, typer.Option("--name", help="Name of the key. Default: its role.")] = "",
) -> None:
    """Create a key and print it. It is shown only once."""

    async def work(api: "Api") -> None:
        if role not in ROLES:
            raise UsageError(f"--role: unknown role {role!r}; write one of {', '.join(ROLES)}")
        body = {"role": role, **({"name": name} if name else {})}
        print((await api.post(path_of(KEYS.plural), body))["key"])

    run(ctx, work)


@key.command("list")
def list_keys(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """List keys with their names and roles."""
    _list(ctx, KEYS, output)


@key.command("revoke")
def revoke_key(ctx: typer.Context, key_id: IdArgument) -> None:
    """Revoke a key. It is refused within a second, and its open watches and logs end."""
    delete(ctx, (KEYS.plural, key_id), f"key/{key_id} revoked")


@secret.command("set")
def set_secret(ctx: typer.Context, name: SecretArgument) -> None:
    """Store a secret, read from stdin. A newline at its end is removed."""

    async def work(api: "Api") -> None:
        await api.put(path_of("secrets", name), {"value": _read_secret()})
        print(f"secret/{name} set")

    run(ctx, work)


@secret.command("delete")
def delete_secret(ctx: typer.Context, name: SecretArgument) -> None:
    """Delete a secret. Running instances keep its value; new starts that need it are refused."""
    delete(ctx, ("secrets", name), f"secret/{name} deleted")


def _list(ctx: typer.Context, kind: Kind, output: Format) -> None:
    async def work(api: "Api") -> None:
        print_objects(kind, await api.items(path_of(kind.plural)), output)

    run(ctx, work)


def _read_secret() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Value", hide_input=True))
    value = sys.stdin.read(_MAX_SECRET + 1).removesuffix("\n")
    if not value:
        raise UsageError('stdin is empty; write for example: printf %s "$HF_TOKEN" | gpuward secret set hf')
    if len(value) > _MAX_SECRET:
        raise UsageError(f"the secret on stdin is longer than the limit of {_MAX_SECRET} characters; shorten it")
    return value
