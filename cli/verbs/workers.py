"""Verbs of operators about workers: cordon, uncordon, drain."""

from typing import Annotated

import typer

from cli.runner import post

app = typer.Typer()
WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Name of the worker.")]


@app.command()
def cordon(ctx: typer.Context, worker: WorkerArgument) -> None:
    """Place no new instances on a worker. Its running instances stay."""
    post(ctx, ("workers", worker, "cordon"), f"worker/{worker} cordoned")


@app.command()
def uncordon(ctx: typer.Context, worker: WorkerArgument) -> None:
    """End the cordon or drain of a worker."""
    post(ctx, ("workers", worker, "uncordon"), f"worker/{worker} uncordoned")


@app.command()
def drain(ctx: typer.Context, worker: WorkerArgument) -> None:
    """Cordon a worker and move its instances to other workers."""
    post(ctx, ("workers", worker, "drain"), f"worker/{worker} is draining")
