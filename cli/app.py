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
    url: Annotated[str | None, typer.Option("--url", envvar="GPUWARD_URL", help="URL of the controller.")] = None,
    key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="GPUWARD_API_KEY", show_envvar=True, help="API key (prefer GPUWARD_API_KEY)."),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version of this program."),
    ] = False,
) -> None:
    """Keeps the flags for the client verbs. Without them, a verb takes what is stored: see `cli.connection`."""
    ctx.obj = {"url": url, "key": key}
