"""The typer application: global flags, and the verbs in the order of `--help`."""

from typing import Annotated

import typer

from cli import daemons
from cli.up import verb as up
from cli.verbs import (
    access,
    apply,
    audit,
    cache,
    defrag,
    deployments,
    describe,
    doctor,
    events,
    get,
    logs,
    plan,
    report,
    rollout,
    top,
    usage,
    version,
    workers,
)  # fmt: skip

app = typer.Typer(
    name="gpuward",
    help="Gpuward keeps AI models on GPUs. Start with `gpuward up`.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, and keys are among them
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    up, daemons, apply, plan, deployments, rollout, defrag, get, describe, top, report, usage, logs, events, workers,
    cache, access, audit, doctor, version,
):  # fmt: skip
    app.add_typer(module.app)


@app.callback()
def remember_flags(
    ctx: typer.Context,
    url: Annotated[str | None, typer.Option("--url", envvar="GPUWARD_URL", help="URL of the controller.")] = None,
    key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="GPUWARD_API_KEY", show_envvar=True, help="API key (prefer GPUWARD_API_KEY)."),
    ] = None,
) -> None:
    """Keeps the flags for the client verbs. Without them, a verb reads `client.env` of a default data folder."""
    ctx.obj = {"url": url, "key": key}
