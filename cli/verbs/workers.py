"""Verbs of operators about workers and GPUs: cordon, uncordon, drain."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.api import parse, path_of
from cli.errors import NotFoundError
from cli.kinds import WORKERS
from cli.runner import post_each, run
from schemas.api.gpus import GpuView
from schemas.printing import block

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
WorkersArgument = Annotated[list[str], typer.Argument(metavar="WORKER...", help="Names of workers.")]
GpuOption = Annotated[
    str | None, typer.Option("--gpu", metavar="GPU", help="Only this GPU of the worker, by its UUID or index.")
]


@app.command()
def cordon(ctx: typer.Context, workers: WorkersArgument, gpu: GpuOption = None) -> None:
    """Place no new instances on workers, or on one GPU of one. Running instances stay."""
    if gpu is None:
        post_each(ctx, WORKERS, workers, "cordon", "cordoned")
    else:
        _post_gpu(ctx, workers, gpu, "cordon")


@app.command()
def uncordon(ctx: typer.Context, workers: WorkersArgument, gpu: GpuOption = None) -> None:
    """End the cordon or drain of workers, or the cordon of one GPU.

    With --gpu it also dismisses a grave Xid that the driver has reported of that GPU.
    """
    if gpu is None:
        post_each(ctx, WORKERS, workers, "uncordon", "uncordoned")
    else:
        _post_gpu(ctx, workers, gpu, "uncordon")


@app.command()
def drain(ctx: typer.Context, workers: WorkersArgument) -> None:
    """Cordon workers and move their instances to others."""
    post_each(ctx, WORKERS, workers, "drain", "is draining")


def _post_gpu(ctx: typer.Context, workers: list[str], gpu: str, verb: str) -> None:
    if len(workers) > 1:
        raise typer.BadParameter("is of one worker; name that one alone", param_hint="--gpu")
    (worker,) = workers

    async def work(api: "Api") -> None:
        uuid = await _uuid_of(api, worker, gpu)
        await api.post(path_of("gpus", uuid, verb))
        print(block(f"gpu/{uuid} {verb}ed"))

    run(ctx, work)


async def _uuid_of(api: "Api", worker: str, gpu: str) -> str:
    """The UUID of a worker's GPU, given that or its index. A slice has no index."""
    found = [parse(GpuView, one) for one in await api.items(path_of("gpus"), worker=worker)]
    for view in found:
        whole = view.status.parent is None and view.status.present
        if view.name == gpu or (gpu.isdecimal() and whole and view.status.index == int(gpu)):
            return view.name
    if not found:
        await api.get(path_of("workers", worker))  # raises where there is none
        raise NotFoundError(f"worker {worker!r} has no GPUs")
    known = ", ".join(f"{view.status.index} ({view.name})" for view in found if view.status.parent is None)
    raise NotFoundError(f"--gpu: {gpu!r} is unknown on {worker}; it has {known}")
