"""Verbs about credentials: join-token, key, secret."""

import sys
from collections.abc import Iterable
from typing import Annotated, Final, get_args

import typer

from cli.errors import CliError, UsageError
from cli.objects.access_kinds import KEYS, SECRETS, TOKENS
from cli.objects.kind import Kind
from cli.printing.list_output import ListOutputOption, Output
from cli.printing.output import Format
from cli.runner import client, delete, parse_seconds
from cli.transport.paths import path_of
from cli.verbs.get import print_objects
from schemas.api.access import MAX_TOKEN_USES, Role

app = typer.Typer()
join_token = typer.Typer(no_args_is_help=True, help="Manage the tokens with which agents join.")
key = typer.Typer(no_args_is_help=True, help="Manage API keys.")
secret = typer.Typer(no_args_is_help=True, help="Manage secrets for `env: {NAME: {secret: ...}}` in manifests.")
app.add_typer(join_token, name="join-token")

ROLES: Final = get_args(Role)
_DEFAULT_EXPIRY_S: Final = 3600.0
_DEFAULT_OVERLAP_S: Final = 86_400.0
_MAX_SECRET: Final = 64 * 1024
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id, as `list` prints it.")]
NetworksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--advertise-network",
        metavar="CIDR",
        help="Network within which its agent may --advertise another address than the one that it connects from. May "
        "be given several times.",
    ),
]
_NO_LIMIT: Final = "none"
_ALL: Final = "all"
_ROLE: Final = "role:"
ModelsOption = Annotated[
    str | None,
    typer.Option(
        "--models", metavar="GLOBS", help="Models that the key may ask, such as chat,embed-*.", show_default="all"
    ),
]
RpmOption = Annotated[str | None, typer.Option("--rpm", metavar="N", help="Requests per minute.")]
TpmOption = Annotated[str | None, typer.Option("--tpm", metavar="N", help="Tokens per minute, of prompts and answers.")]
DayOption = Annotated[str | None, typer.Option("--tokens-per-day", metavar="N", help="Tokens per day (UTC).")]
ParallelOption = Annotated[str | None, typer.Option("--parallel", metavar="N", help="Requests at once.")]


def _expiry(text: str) -> str:
    return text if text == _NO_LIMIT else f"{parse_seconds(text):.15g}"


ExpiresOption = Annotated[
    str | None,
    typer.Option("--expires", parser=_expiry, metavar="DURATION", help="Time until the key expires, such as 30d."),
]
ForOption = Annotated[
    list[str] | None,
    typer.Option(
        "--for",
        metavar="PATTERN",
        help="Deployments that may use it, such as `team-a-*`; `role:admin`: only administrators may write it into a "
        "deployment; `all`: no limit. May be given several times.",
        show_default="all, at first",
    ),
]
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
            "labels": stated_labels(labels or ()),
        }
        given["advertise_networks"] = networks
        body |= {field: value for field, value in given.items() if value}  # older controllers know none of these
        print(api.post(path_of(TOKENS.plural), body)["token"])


@join_token.command("list")
def list_tokens(ctx: typer.Context, output: ListOutputOption = Format.TABLE) -> None:
    """List tokens and their states."""
    _list(ctx, TOKENS, output)


@join_token.command("revoke")
def revoke_token(ctx: typer.Context, token_id: IdArgument) -> None:
    """Revoke a token. Agents that joined with it stay."""
    delete(ctx, (TOKENS.plural, token_id), f"token/{token_id} revoked")


@key.command("create")
def create_key(  # noqa: PLR0917 - options of a command
    ctx: typer.Context,
    role: Annotated[str, typer.Option("--role", help=f"Role of the key: {', '.join(ROLES)}.")],
    name: Annotated[str, typer.Option("--name", help="Name of the key. Default: its role.")] = "",
    models: ModelsOption = None,
    rpm: RpmOption = None,
    tpm: TpmOption = None,
    tokens_per_day: DayOption = None,
    parallel: ParallelOption = None,
    expires: ExpiresOption = None,
) -> None:
    """Create a key and print it. It is shown only once."""
    with client(ctx) as api:
        if role not in ROLES:
            raise UsageError(f"--role: unknown role {role!r}; write one of {', '.join(ROLES)}")
        limits = _limits(models, rpm, tpm, tokens_per_day, parallel, expires)
        body = {"role": role, **({"name": name} if name else {}), **limits}
        print(api.post(path_of(KEYS.plural), body)["key"])


@key.command("update")
def update_key(  # noqa: PLR0917 - options of a command
    ctx: typer.Context,
    key_id: IdArgument,
    name: Annotated[str, typer.Option("--name", help="New name of the key.")] = "",
    models: ModelsOption = None,
    rpm: RpmOption = None,
    tpm: TpmOption = None,
    tokens_per_day: DayOption = None,
    parallel: ParallelOption = None,
    expires: ExpiresOption = None,
) -> None:
    """Change a key's limits in place. What is not given stays; `none` removes a limit."""
    with client(ctx) as api:
        body = _limits(models, rpm, tpm, tokens_per_day, parallel, expires) | ({"name": name} if name else {})
        if not body:
            raise UsageError("nothing to change; give an option, such as --rpm 60 or --rpm none")
        api.patch(path_of(KEYS.plural, key_id), body)
        print(f"key/{key_id} changed")


def _limits(
    models: str | None,
    rpm: str | None,
    tpm: str | None,
    tokens_per_day: str | None,
    parallel: str | None,
    expires: str | None,
) -> dict[str, object]:
    """The fields of a body for the options that were given; `none` becomes no limit."""
    given = {"rpm": rpm, "tpm": tpm, "tokens_per_day": tokens_per_day, "parallel": parallel}
    body: dict[str, object] = {
        name: None if text == _NO_LIMIT else _whole(name, text) for name, text in given.items() if text is not None
    }
    if models is not None:
        body["models"] = [] if models == _NO_LIMIT else [one.strip() for one in models.split(",") if one.strip()]
        if not body["models"] and models != _NO_LIMIT:
            raise UsageError("--models: names no model; write for example chat,embed-*, or none for all models")
    if expires is not None:
        body["expires_s"] = None if expires == _NO_LIMIT else float(expires)
    return body


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        option = name.replace("_", "-")
        raise UsageError(f"--{option}: must be a whole number of 1 or more, or none, got {text[:40]!r}")
    return int(text)


@key.command("list")
def list_keys(ctx: typer.Context, output: ListOutputOption = Format.TABLE) -> None:
    """List keys with their names and roles."""
    _list(ctx, KEYS, output)


@key.command("rotate")
def rotate_key(
    ctx: typer.Context,
    key_id: IdArgument,
    overlap_s: Annotated[
        float,
        typer.Option(
            "--overlap",
            parser=parse_seconds,
            metavar="DURATION",
            show_default="24h",
            help="Time for which both keys are valid.",
        ),
    ] = _DEFAULT_OVERLAP_S,
    expires: ExpiresOption = None,
) -> None:
    """Create a key with the same role, limits and name, and print it. The old one expires after the overlap."""
    with client(ctx) as api:
        body: dict[str, object] = {"overlap_s": overlap_s}
        if expires is not None:
            body["expires_s"] = None if expires == _NO_LIMIT else float(expires)
        print(api.post(path_of(KEYS.plural, key_id, "rotate"), body)["key"])


@key.command("revoke")
def revoke_key(ctx: typer.Context, key_id: IdArgument) -> None:
    """Revoke a key. It is refused within a second, and its open watches and logs end."""
    delete(ctx, (KEYS.plural, key_id), f"key/{key_id} revoked")


@secret.command("set")
def set_secret(
    ctx: typer.Context,
    name: SecretArgument,
    scope: ForOption = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Store it unencrypted where the controller has no key. Else it is refused.")
    ] = False,
) -> None:
    """Store a secret, read from stdin. A newline at its end is removed. Without `--for` its scope stays as it is."""
    with client(ctx) as api:
        # A controller of before `plain` refuses the field, so it is sent only where it is asked for.
        more: dict[str, object] = {**_scope(scope), **({"plain": True} if plain else {})}
        api.put(path_of(SECRETS.plural, name), {"value": _read_secret(), **more})
        print(f"secret/{name} set")


@secret.command("scope")
def scope_secret(ctx: typer.Context, name: SecretArgument, scope: ForOption = None) -> None:
    """Change which deployments may use a secret. Running instances keep it; new starts out of its scope are refused."""
    with client(ctx) as api:
        limits = _scope(scope)
        if not limits:
            raise UsageError("nothing to change; give --for, such as --for 'chat-*', or --for all")
        api.patch(path_of(SECRETS.plural, name), limits)
        print(f"secret/{name} changed")


@secret.command("list")
def list_secrets(ctx: typer.Context, output: ListOutputOption = Format.TABLE) -> None:
    """List secrets, without their values: what they are for, and whether this controller can read them."""
    _list(ctx, SECRETS, output)


@secret.command("rotate-key")
def rotate_secrets_key(ctx: typer.Context) -> None:
    """Encrypt all secrets under a new key: one that the controller makes, or the first one of its setting."""
    with client(ctx) as api:
        done = api.post(path_of(SECRETS.plural, "rotate-key"), {})
        print(f"{done['encrypted']} secrets encrypted under key {done['key_id']}")
        if gateways := done.get("waiting_for"):  # controllers of versions before name none
            print(
                "keep the earlier key: the secrets of agents' proxies stay as they are until these gateways have the "
                f"new one: {', '.join(gateways)}; see: gpuward secret proxy-key --help",
                file=sys.stderr,
            )
        if done["unreadable"]:
            raise CliError(
                f"secrets that no key of this controller opens: {', '.join(done['unreadable'])}; "
                "add their key to its setting, or set them again"
            )


@secret.command("delete")
def delete_secret(ctx: typer.Context, name: SecretArgument) -> None:
    """Delete a secret. Running instances keep its value; new starts that need it are refused."""
    delete(ctx, ("secrets", name), f"secret/{name} deleted")


def stated_labels(given: Iterable[str]) -> dict[str, str]:
    """Labels as options name them.

    Raises:
        UsageError: one is not KEY=VALUE.
    """
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError(f"--label: must be KEY=VALUE, such as gpuward.io/zone=a, got {text[:80]!r}")
        found[key] = value
    return found


def _scope(given: list[str] | None) -> dict[str, object]:
    """The fields of a body for what a secret is for; none: the scope stays."""
    words = [word.strip() for text in given or () for word in text.split(",") if word.strip()]
    if given is None or not given:
        return {}
    if not words:
        raise UsageError("--for: names nothing; write for example 'chat-*', role:admin, or all")
    roles = {word.removeprefix(_ROLE) for word in words if word.startswith(_ROLE)}
    if unknown := roles - {"admin", "operator"}:
        raise UsageError(f"--for: role {min(unknown)[:40]!r} writes no deployments; write role:admin or role:operator")
    globs = [word for word in words if not word.startswith(_ROLE)]
    if _ALL in globs and len(globs) > 1:
        raise UsageError("--for: all stands beside patterns; write one or the other")
    return {"deployments": [] if globs == [_ALL] else globs, "admins_only": roles == {"admin"}}


def _list(ctx: typer.Context, kind: Kind, output: Output) -> None:
    with client(ctx) as api:
        print_objects(kind, api.items(path_of(kind.plural)), output)


def _read_secret() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Value", hide_input=True))
    value = sys.stdin.read(_MAX_SECRET + 1).removesuffix("\n")
    if not value:
        raise UsageError('stdin is empty; write for example: printf %s "$HF_TOKEN" | gpuward secret set hf')
    if len(value) > _MAX_SECRET:
        raise UsageError(f"the secret on stdin is longer than the limit of {_MAX_SECRET} characters; shorten it")
    return value
