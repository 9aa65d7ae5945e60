"""The verb `secret`. `proxy-key` reads the controller's keys of secrets, and needs no API key."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.errors import CliError, UsageError
from cli.local.options import ControllerDataOption, needs, validated
from cli.objects.kinds import SECRETS
from cli.printing.output import Format, ListOutputOption
from cli.runner import client, complain, delete
from cli.transport.paths import path_of
from cli.verbs.get import list_all

app = typer.Typer()
_secrets = typer.Typer(no_args_is_help=True, help="Manage secrets for `env: {NAME: {secret: ...}}` in manifests.")
app.add_typer(_secrets, name="secret")
_MAX_SECRET: Final = 64 * 1024
_ALL: Final = "all"
_ROLE: Final = "role:"
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


@_secrets.command("set")
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
        # `plain` only where it is given, since older controllers refuse the field
        more: dict[str, object] = {**_scope(scope), **({"plain": True} if plain else {})}
        api.put(path_of(SECRETS.plural, name), {"value": _read_secret(), **more})
        print(f"secret/{name} set")


@_secrets.command("scope")
def scope_secret(ctx: typer.Context, name: SecretArgument, scope: ForOption = None) -> None:
    """Change which deployments may use a secret. Running instances keep it; new starts out of its scope are refused."""
    with client(ctx) as api:
        limits = _scope(scope)
        if not limits:
            raise UsageError("nothing to change; give --for, such as --for 'chat-*', or --for all")
        api.patch(path_of(SECRETS.plural, name), limits)
        print(f"secret/{name} changed")


@_secrets.command("list")
def list_secrets(ctx: typer.Context, output: ListOutputOption = Format.TABLE) -> None:
    """List secrets, without their values: what they are for, and whether this controller can read them."""
    list_all(ctx, SECRETS, output)


@_secrets.command("rotate-key")
def rotate_secrets_key(ctx: typer.Context) -> None:
    """Encrypt all secrets under a new key: one that the controller makes, or the first one of its setting."""
    with client(ctx) as api:
        done = api.post(path_of(SECRETS.plural, "rotate-key"), {})
        print(f"{done['encrypted']} secrets encrypted under key {done['key_id']}")
        if gateways := done.get("waiting_for"):  # older controllers name no gateways
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


@_secrets.command("delete")
def delete_secret(ctx: typer.Context, name: SecretArgument) -> None:
    """Delete a secret. Running instances keep its value; new starts that need it are refused."""
    delete(ctx, ("secrets", name), f"secret/{name} deleted")


@_secrets.command("proxy-key")
def proxy_key(
    data_dir: ControllerDataOption = None,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", help="File with the controller's keys (prefer GPUWARD_SECRETS_KEY_FILE)."),
    ] = None,
) -> None:
    """Print the keys for GPUWARD_PROXY_KEY_FILE of gateways on other hosts. Run it where the controller's keys are.

    Gateways open the secrets of agents' proxies with them, and nothing else.
    """
    with needs("controller"):
        from controller.secrets_key import SecretsKeyError, proxy_keys  # noqa: PLC0415 - client verbs start without it
        from controller.settings import ControllerSettings  # noqa: PLC0415 - as above
    settings = validated(ControllerSettings, data_dir=data_dir, secrets_key_file=key_file)
    try:
        texts = proxy_keys(settings)
    except SecretsKeyError as error:
        complain(CliError(str(error)))
    if not texts:
        complain(
            CliError("no key of secrets is here; name its file with --key-file, or run this on the controller's host")
        )
    print("\n".join(texts))


def _scope(given: list[str] | None) -> dict[str, object]:
    """The fields of a body for the scope of a secret; empty: the scope stays."""
    words = [word.strip() for text in given or () for word in text.split(",") if word.strip()]
    if not given:
        return {}
    if not words:
        raise UsageError("--for: names nothing; write for example 'chat-*', role:admin, or all")
    roles = {word.removeprefix(_ROLE) for word in words if word.startswith(_ROLE)}
    if unknown := roles - {"admin", "operator"}:
        raise UsageError(f"--for: role {min(unknown)[:40]!r} writes no deployments; write role:admin or role:operator")
    globs = [word for word in words if not word.startswith(_ROLE)]
    if _ALL in globs and len(globs) > 1:
        raise UsageError("--for: all cannot be combined with patterns; write one or the other")
    return {"deployments": [] if globs == [_ALL] else globs, "admins_only": roles == {"admin"}}


def _read_secret() -> str:
    if sys.stdin.isatty():
        return str(typer.prompt("Value", hide_input=True))
    value = sys.stdin.read(_MAX_SECRET + 1).removesuffix("\n")
    if not value:
        raise UsageError('stdin is empty; write for example: printf %s "$HF_TOKEN" | gpuward secret set hf')
    if len(value) > _MAX_SECRET:
        raise UsageError(f"the secret on stdin is longer than the limit of {_MAX_SECRET} characters; shorten it")
    return value
