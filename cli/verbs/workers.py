"""Verbs of operators about workers and GPUs: cordon, uncordon, drain."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.api import parse, path_of
from cli.errors import NotFoundError
from cli.runner import post, run
from schemas.api.gpus import GpuView
from schemas.printing import block

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
WorkerArgument = Annotated[str, typer.Argument(metavar="WORKER", help="Name of the worker.")]
GpuOption = Annotated[
    str | None, typer.Option("--gpu", metavar="GPU", help="Only this GPU of the worker, by its UUID or index.")
]


@app.command()
def cordon(ctx: typer.Context, worker: WorkerArgument, gpu: GpuOption = None) -> None:
    """Place no new instances on a worker, or on one of its GPUs. Its running instances stay."""
    if gpu is None:
        post(ctx, ("workers", worker, "cordon"), f"worker/{worker} cordoned")
    else:
        _post_gpu(ctx, worker, gpu, "cordon")


@app.command()
def uncordon(ctx: typer.Context, worker: WorkerArgument, gpu: GpuOption = None) -> None:
    """End the cordon or drain of a worker, or the cordon of one of its GPUs.

    With --gpu it also dismisses a grave Xid that the driver has reported of that GPU.
    """
    if gpu is None:
        post(ctx, ("workers", worker, "uncordon"), f"worker/{worker} uncordoned")
    else:
        _post_gpu(ctx, worker, gpu, "uncordon")


@app.command()
def drain(ctx: typer.Context, worker: WorkerArgument) -> None:
    """Cordon a worker and move its instances to other workers."""
    post(ctx, ("workers", worker, "drain"), f"worker/{worker} is draining")


def _post_gpu(ctx: typer.Context, worker: str, gpu: str, verb: str) -> None:
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
