"""Verbs of operators about workers: cordon, uncordon, drain."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.answers import path_of
from cli.verb import run

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="The worker's name.")]


@app.command()
def cordon(ctx: typer.Context, worker: WorkerArgument) -> None:
    """Place nothing new on a worker; what runs there goes on."""
    _ask(ctx, worker, "cordon", "cordoned")


@app.command()
def uncordon(ctx: typer.Context, worker: WorkerArgument) -> None:
    """End a cordon or a drain."""
    _ask(ctx, worker, "uncordon", "uncordoned")


@app.command()
def drain(ctx: typer.Context, worker: WorkerArgument) -> None:
    """Cordon a worker and move its instances elsewhere."""
    _ask(ctx, worker, "drain", "is draining")


def _ask(ctx: typer.Context, worker: str, action: str, done: str) -> None:
    async def work(api: "Api") -> None:
        await api.post(path_of("workers", worker, action))
        print(f"worker/{worker} {done}")

    run(ctx, work)
