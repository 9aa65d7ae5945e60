"""The typer application: the global flags, and the verbs of `cli.verb_table`, imported when they are called."""

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from cli.verb_table import VERBS
from schemas.version import __version__

_GLOBAL: Final = {"--url": "URL", "--api-key": "KEY", "--context": "NAME"}  # options before the verb, and their values


def commands_of(app: typer.Typer) -> Mapping[str, Any]:
    """The commands of a module's application, by name, as a part of ours."""
    plain = typer.Typer(rich_markup_mode=None)  # it hands that on
    plain.add_typer(app)
    return get_group(plain).commands


def imported(name: str) -> Any:
    """The command of a verb, from its module."""
    module = next(verb.module for verb in VERBS if verb.name == name)
    return commands_of(import_module(module).app)[name]


class Verbs(TyperGroup):
    """The verbs of `gpuward`. Its help and its completion know their names and short help, and import none of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for verb in VERBS:
            self.add_command(TyperCommand(verb.name, help=verb.help))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Imports the verb. A kind in the place of a verb: the error names the call that lists the kind."""
        if args and args[0] not in self.commands:
            from cli.objects.kinds import KINDS  # noqa: PLC0415 - slow, and only errors need it

            if any(args[0].lower() in kind.words for kind in KINDS):
                ctx.fail(f"No such command '{args[0]}'. List these objects by: gpuward get {args[0].lower()}")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else imported(name), rest

    def invoke(self, ctx: Any) -> Any:
        """As any group. A global option after the verb: the error shows where it belongs."""
        try:
            return super().invoke(ctx)
        except typer.TyperException as error:
            option: Any = getattr(error, "option_name", None)
            if option in _GLOBAL and hasattr(error, "possibilities"):  # it is unknown, not without its value
                _, _, verb = error.ctx.command_path.partition(" ")  # type: ignore[attr-defined]
                error.possibilities = None
                error.message += f"; write it before the verb: gpuward {option} {_GLOBAL[option]} {verb}"
            raise


app = typer.Typer(
    name="gpuward",
    cls=Verbs,
    help="Gpuward keeps AI models on GPUs. Start with `gpuward up`.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, and keys are among them
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"gpuward {__version__}")
        raise typer.Exit


@app.callback()
def remember_flags(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", envvar="GPUWARD_URL", show_envvar=True, metavar="URL[,URL]", help="URL of the controller."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="GPUWARD_API_KEY", show_envvar=True, help="API key (prefer GPUWARD_API_KEY)."),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            envvar="GPUWARD_CONTEXT",
            show_envvar=True,
            metavar="NAME",
            help="A context of `gpuward context list`. It goes before GPUWARD_URL and GPUWARD_API_KEY.",
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version of this program."),
    ] = False,
) -> None:
    """Keeps the flags for the client verbs. They read the variables themselves: see `cli.transport.connection`."""
    given = {"url": url, "key": key, "context": context}
    ctx.obj = {name: value if _is_flag(ctx, name) else None for name, value in given.items()}


def _is_flag(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
