"""The typer application: global flags, and the verbs in the order of `--help`."""

from typing import Annotated

import typer

from cli import daemons
from cli.verbs import access, change, defrag, follow, health, look, report, top, workers

app = typer.Typer(
    name="gpuward",
    help="Gpuward keeps AI models on GPUs. Start with `gpuward up`.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, and keys are among them
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (
    daemons.app,
    change.app,
    defrag.app,
    look.app,
    top.app,
    report.app,
    follow.app,
    workers.app,
    access.app,
    health.app,
):
    app.add_typer(part)


@app.callback()
def remember_flags(
    ctx: typer.Context,
    url: Annotated[
        str | None, typer.Option("--url", envvar="GPUWARD_URL", help="Where the controller answers.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--api-key", envvar="GPUWARD_API_KEY", show_envvar=True, help="A key; better given by the variable."
        ),
    ] = None,
) -> None:
    """Flags of all client verbs. Without them, the `client.env` of a default data folder is read."""
    ctx.obj = {"url": url, "key": key}
