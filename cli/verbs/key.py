"""The verb `key`. `reset` works on the controller's data, and needs no key."""

from typing import Annotated, Final, get_args

import typer

from cli.errors import CliError, UsageError
from cli.local.options import ControllerDatabaseOption, ControllerDataOption, needs, validated
from cli.objects.kinds import KEYS
from cli.printing.output import Format, ListOutputOption
from cli.runner import client, complain, delete, parse_seconds
from cli.transport.paths import path_of
from cli.verbs.get import list_all
from schemas.api.access import Role

app = typer.Typer()
_keys = typer.Typer(no_args_is_help=True, help="Manage API keys.")
app.add_typer(_keys, name="key")

ROLES: Final = get_args(Role)
_DEFAULT_OVERLAP_S: Final = 86_400.0
_NO_LIMIT: Final = "none"
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id, as `list` prints it.")]
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


@_keys.command("create")
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
        limits = _limits(models, expires, rpm=rpm, tpm=tpm, tokens_per_day=tokens_per_day, parallel=parallel)
        body = {"role": role, **({"name": name} if name else {}), **limits}
        print(api.post(path_of(KEYS.plural), body)["key"])


@_keys.command("update")
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
        body = _limits(models, expires, rpm=rpm, tpm=tpm, tokens_per_day=tokens_per_day, parallel=parallel)
        body |= {"name": name} if name else {}
        if not body:
            raise UsageError("nothing to change; give an option, such as --rpm 60 or --rpm none")
        api.patch(path_of(KEYS.plural, key_id), body)
        print(f"key/{key_id} changed")


def _limits(models: str | None, expires: str | None, **counts: str | None) -> dict[str, object]:
    """The fields of a body for the given options; `none` removes a limit."""
    body: dict[str, object] = {
        name: None if text == _NO_LIMIT else _count(name, text) for name, text in counts.items() if text is not None
    }
    if models is not None:
        body["models"] = [] if models == _NO_LIMIT else [glob.strip() for glob in models.split(",") if glob.strip()]
        if not body["models"] and models != _NO_LIMIT:
            raise UsageError("--models: names no model; write for example chat,embed-*, or none for all models")
    return body | _expiry_field(expires)


def _expiry_field(expires: str | None) -> dict[str, object]:
    return {} if expires is None else {"expires_s": None if expires == _NO_LIMIT else float(expires)}


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        option = name.replace("_", "-")
        raise UsageError(f"--{option}: must be a whole number of 1 or more, or none, got {text[:40]!r}")
    return int(text)


@_keys.command("list")
def list_keys(ctx: typer.Context, output: ListOutputOption = Format.TABLE) -> None:
    """List keys with their names and roles."""
    list_all(ctx, KEYS, output)


@_keys.command("rotate")
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
        body = {"overlap_s": overlap_s, **_expiry_field(expires)}
        print(api.post(path_of(KEYS.plural, key_id, "rotate"), body)["key"])


@_keys.command("revoke")
def revoke_key(ctx: typer.Context, key_id: IdArgument) -> None:
    """Revoke a key. It is refused within a second, and its open watches and logs end."""
    delete(ctx, (KEYS.plural, key_id), f"key/{key_id} revoked")


@_keys.command("reset")
def reset_key(
    data_dir: ControllerDataOption = None,
    database_url: ControllerDatabaseOption = None,
) -> None:
    """Create a key of an administrator on the controller's host, and write it to client.env in the data folder.

    Works while the controller runs and while it is stopped. Other keys stay valid.
    """
    with needs("controller"):
        from controller.host_commands import HostCommandError  # noqa: PLC0415 - client verbs start without it
        from controller.host_commands import reset_key as reset  # noqa: PLC0415 - as above
        from controller.settings import ControllerSettings  # noqa: PLC0415 - as above
    settings = validated(ControllerSettings, data_dir=data_dir, database_url=database_url)
    try:
        file = reset(settings)
    except HostCommandError as error:
        complain(CliError(str(error)))
    print(f"key of an administrator written to {file}")
