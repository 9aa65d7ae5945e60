"""Verbs about models of the hub that workers have fetched: list, prune."""

from typing import Annotated

import typer

from cli.objects.kinds import CACHED_MODELS
from cli.printing.output import Format, ListOutputOption, Output
from cli.runner import client, parse_seconds
from cli.transport.paths import Json, path_of
from cli.verbs.get import print_objects

app = typer.Typer()
cache = typer.Typer(help="Models of the hub that workers have fetched: list, prune.", no_args_is_help=True)
app.add_typer(cache, name="cache")
WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Name of the worker.")]


@cache.command("list")
def list_models(ctx: typer.Context, worker: WorkerArgument, output: ListOutputOption = Format.TABLE) -> None:
    """List the models in the cache of a worker, with their revisions."""
    with client(ctx) as api:
        _print(api.items(path_of("workers", worker, "cache")), output)


@cache.command()
def prune(
    ctx: typer.Context,
    worker: WorkerArgument,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL...]", help="Only these, as hf:org/name[@revision]."),
    ] = None,
    unused_for: Annotated[
        float | None,
        typer.Option(
            "--unused-for",
            parser=parse_seconds,
            metavar="DURATION",
            help="Only those that no process has used for so long, such as 30d.",
        ),
    ] = None,
    output: ListOutputOption = Format.TABLE,
) -> None:
    """Remove cached models that no process uses, and list them."""
    with client(ctx) as api:
        body = {"models": models or [], "unused_for_s": unused_for or 0.0}
        removed = api.post(path_of("workers", worker, "cache", "prune"), body)
        _print(removed["items"], output)


def _print(models: list[Json], output: Output) -> None:
    """Prints a row for each revision; for programs the models of the API."""
    rows = models if output.for_programs else [row for model in models for row in by_revision(model)]
    print_objects(CACHED_MODELS, rows, output)


def by_revision(model: Json) -> list[Json]:
    """The model once for each of its revisions, with the figures of that revision."""
    shown = ("size_bytes", "used_at", "in_use")
    snapshots = model.get("snapshots") or ()
    return [{**model, **{name: row[name] for name in shown}, "snapshots": [row]} for row in snapshots] or [model]
