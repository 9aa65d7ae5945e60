"""The typer application: the global flags. The verbs are in `cli.verb_table`."""

from typing import Annotated

import typer

from cli.lazy_group import Verbs
from schemas.version import __version__

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
