"""The verb top: a picture of the cluster now, again and again."""

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.answers import parse, path_of
from cli.errors import CliError
from cli.output import console
from cli.top_view import Picture, gpus_that_fit, view_of
from cli.verb import run, seconds
from schemas.api.gpus import GpuView
from schemas.api.history import UtilizationView
from schemas.api.instances import InstanceView
from schemas.api.workers import WorkerView

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
_PERIOD_S: Final = 2.0
_MOST_GPUS: Final = 512
_MOST_AT_ONCE: Final = 128  # UUIDs in one URL
_PAGE: Final = 1000


@app.command()
def top(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", "-n", help="Print once and end.")] = False,
    worker: Annotated[str | None, typer.Option("--worker", help="Only this worker.")] = None,
    window: Annotated[
        float, typer.Option("--window", parser=seconds, metavar="DURATION", help="How much of the past is drawn.")
    ] = 600.0,
) -> None:
    """Watch workers and GPUs: memory, utilization, who is idle and when it is stopped. Ctrl-C ends it."""
    live = not once and sys.stdout.isatty()

    async def work(api: "Api") -> None:
        out = console()
        if not live:
            with out.capture() as captured:
                out.print(view_of(await _look(api, worker, window, None), lines=None))
            print("\n".join(line.rstrip() for line in captured.get().splitlines()))
            return
        from rich.live import Live  # noqa: PLC0415 - slow to import

        picture = await _look(api, worker, window, out.height)
        with Live(view_of(picture, lines=out.height), console=out, screen=True, auto_refresh=False) as screen:
            while True:
                await asyncio.sleep(_PERIOD_S)
                note = ""
                try:
                    picture = await _look(api, worker, window, out.height)
                except CliError as error:  # a controller that restarts, and all that it may say meanwhile
                    note = f"{str(error).splitlines()[0]}; still trying, this is of {picture.now.astimezone():%H:%M:%S}"
                screen.update(view_of(picture, lines=out.height, note=note), refresh=True)

    run(ctx, work, endless=live)


async def _look(api: "Api", worker: str | None, window_s: float, lines: int | None) -> Picture:
    """Reads what is to be shown, and no more than fits."""
    if worker is not None:
        workers = [parse(WorkerView, await api.get(path_of("workers", worker)))]
    else:
        workers = [parse(WorkerView, raw) for raw in await api.items(path_of("workers"))]
    most = gpus_that_fit(lines, _MOST_GPUS)
    gpus = [parse(GpuView, raw) for raw in await api.items(path_of("gpus"), limit=most, worker=worker)]
    instances: dict[str, InstanceView] = {}
    series: dict[str, list[float | None]] = {}
    for host in dict.fromkeys(gpu.status.worker for gpu in gpus if gpu.status.claims):
        found = await api.items(path_of("instances"), limit=_PAGE, worker=host)
        instances |= {view.name: view for view in (parse(InstanceView, raw) for raw in found)}
    for begin in range(0, len(gpus), _MOST_AT_ONCE):
        uuids = ",".join(gpu.uid for gpu in gpus[begin : begin + _MOST_AT_ONCE])
        answer = await api.get(path_of("utilization"), gpus=uuids, window=f"{window_s:.15g}s")
        series |= {one.gpu: one.values for one in parse(UtilizationView, answer).series}
    return Picture(
        url=api.url,
        now=datetime.now(UTC),
        window_s=window_s,
        workers=workers,
        gpus=gpus,
        gpus_in_all=max(len(gpus), sum(w.status.gpus for w in workers)),
        instances=instances,
        series=series,
    )
