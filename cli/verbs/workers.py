"""Verbs of operators about workers and GPUs: cordon, uncordon, drain."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.api import path_of
from cli.errors import CliError, NotFoundError
from cli.kinds import WORKERS
from cli.names import printed_gpus
from cli.runner import post_each, run
from schemas.printing import block

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
WorkersArgument = Annotated[list[str], typer.Argument(metavar="WORKER...", help="Names of workers.")]
GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", metavar="GPU", help="Only this GPU of the worker, by its UUID, its short id or its index."),
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
    """The UUID of a worker's GPU, given that, its first block, its index or WORKER:INDEX. A slice has no index.

    Raises:
        NotFoundError: the worker has no such GPU.
        CliError: it has several.
    """
    found = await api.items(path_of("gpus"), worker=worker)
    if not found:
        await api.get(path_of("workers", worker))  # raises where there is none
        raise NotFoundError(f"worker {worker!r} has no GPUs")
    uuids = printed_gpus(f"{worker}:{gpu}" if gpu.isdecimal() else gpu, found) or printed_gpus(gpu, found)
    if len(uuids) == 1:
        return uuids[0]
    if uuids:
        raise CliError(f"--gpu: {gpu!r} is not unique on {worker}: {', '.join(uuids)}; write the whole UUID")
    whole = [one for one in found if one["status"].get("parent") is None]
    known = ", ".join(f"{one['status']['index']} ({one['name']})" for one in whole)
    raise NotFoundError(f"--gpu: {gpu!r} is unknown on {worker}; it has {known}")
