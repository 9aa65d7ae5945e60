"""Verbs about models of the hub that workers have fetched: list, prune."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.api import path_of
from cli.kinds import CACHED_MODELS
from cli.output import Format
from cli.runner import OutputOption, parse_seconds, run
from cli.verbs.get import print_objects

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
cache = typer.Typer(help="Models of the hub that workers have fetched: list, prune.", no_args_is_help=True)
app.add_typer(cache, name="cache")
WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Name of the worker.")]


@cache.command("list")
def list_models(ctx: typer.Context, worker: WorkerArgument, output: OutputOption = Format.TABLE) -> None:
    """List the models in the cache of a worker."""

    async def work(api: "Api") -> None:
        print_objects(CACHED_MODELS, await api.items(path_of("workers", worker, "cache")), output)

    run(ctx, work)


@cache.command()
def prune(
    ctx: typer.Context,
    worker: WorkerArgument,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL...]", help="Only these, as hf:org/name. Default: all.")
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
    output: OutputOption = Format.TABLE,
) -> None:
    """Remove cached models that no process uses, and list them."""

    async def work(api: "Api") -> None:
        body = {"models": models or [], "unused_for_s": unused_for or 0.0}
        removed = await api.post(path_of("workers", worker, "cache", "prune"), body)
        print_objects(CACHED_MODELS, removed["items"], output)

    run(ctx, work)
