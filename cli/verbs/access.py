"""Verbs about who may come in: join-token, key, secret."""

import sys
from typing import TYPE_CHECKING, Annotated, Final, get_args

import typer

from cli.answers import path_of
from cli.errors import UsageError
from cli.kinds import KEYS, TOKENS
from cli.output import Format
from cli.verb import OutputOption, run, seconds
from cli.verbs.look import show
from schemas.api.access import Role

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
join_token = typer.Typer(no_args_is_help=True, help="One-time tokens by which agents join.")
key = typer.Typer(no_args_is_help=True, help="API keys and their roles.")
secret = typer.Typer(no_args_is_help=True, help="Values for `env: {NAME: {secret: ...}}`; never printed again.")
app.add_typer(join_token, name="join-token")
app.add_typer(key, name="key")
app.add_typer(secret, name="secret")

ROLES: Final = get_args(Role)
_DEFAULT_EXPIRY_S: Final = 3600.0
_MAX_SECRET: Final = 64 * 1024
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="As `list` prints it.")]
SecretArgument = Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.")]


@join_token.command("create")
def create_token(
    ctx: typer.Context,
    expires_s: Annotated[
        float, typer.Option("--expires", parser=seconds, metavar="DURATION", help="Valid for so long, such as 1h.")
    ] = _DEFAULT_EXPIRY_S,
) -> None:
    """Make a token and print it, alone. It is shown this once and joins one agent."""

    async def work(api: "Api") -> None:
        print((await api.post(path_of(TOKENS.path), {"expires_s": expires_s}))["token"])

    run(ctx, work)


@join_token.command("list")
def list_tokens(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """Print the tokens and whether they were used."""

    async def work(api: "Api") -> None:
        show(TOKENS, await api.items(path_of(TOKENS.path)), output)

    run(ctx, work)


@join_token.command("revoke")
def revoke_token(ctx: typer.Context, token_id: IdArgument) -> None:
    """Make a token useless. Agents that joined by it stay."""

    async def work(api: "Api") -> None:
        await api.delete(path_of(TOKENS.path, token_id))
        print(f"token/{token_id} revoked")

    run(ctx, work)


@key.command("create")
def create_key(
    ctx: typer.Context,
    role: Annotated[str, typer.Option("--role", help=f"One of {', '.join(ROLES)}.")],
    name: Annotated[str, typer.Option("--name", help="Whose it is, for `key list`.")] = "",
) -> None:
    """Make a key and print it, alone. It is shown this once."""

    async def work(api: "Api") -> None:
        if role not in ROLES:
            raise UsageError(f"--role: {role!r} is no role; write one of {', '.join(ROLES)}")
        body = {"role": role, **({"name": name} if name else {})}
        print((await api.post(path_of(KEYS.path), body))["key"])

    run(ctx, work)


@key.command("list")
def list_keys(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """Print the keys' ids, names and roles."""

    async def work(api: "Api") -> None:
        show(KEYS, await api.items(path_of(KEYS.path)), output)

    run(ctx, work)


@key.command("revoke")
def revoke_key(ctx: typer.Context, key_id: IdArgument) -> None:
    """Make a key useless, within seconds."""

    async def work(api: "Api") -> None:
        await api.delete(path_of(KEYS.path, key_id))
        print(f"key/{key_id} revoked")

    run(ctx, work)


@secret.command("set")
def set_secret(ctx: typer.Context, name: SecretArgument) -> None:
    """Store a value, read from stdin (one newline at its end is dropped)."""

    async def work(api: "Api") -> None:
        await api.put(path_of("secrets", name), {"value": _read_secret()})
        print(f"secret/{name} set")

    run(ctx, work)


@secret.command("delete")
def delete_secret(ctx: typer.Context, name: SecretArgument) -> None:
    """Delete a value. What runs with it goes on; new starts that need it are refused."""

    async def work(api: "Api") -> None:
        await api.delete(path_of("secrets", name))
        print(f"secret/{name} deleted")

    run(ctx, work)


def _read_secret() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Value", hide_input=True))
    value = sys.stdin.read(_MAX_SECRET + 1).removesuffix("\n")
    if not value:
        raise UsageError('stdin holds no value; write for example: printf %s "$HF_TOKEN" | gpuward secret set hf')
    if len(value) > _MAX_SECRET:
        raise UsageError(f"stdin holds more than {_MAX_SECRET} characters, too much for a secret")
    return value
