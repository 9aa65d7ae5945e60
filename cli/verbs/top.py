"""The verb `top`: a view of the cluster that refreshes."""

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.api import parse, path_of
from cli.errors import CliError
from cli.output import console
from cli.runner import parse_seconds, run
from cli.top_view import Snapshot, gpus_that_fit, view_of
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
    once: Annotated[bool, typer.Option("--once", "-n", help="Print once and exit.")] = False,
    worker: Annotated[str | None, typer.Option("--worker", help="Show only this worker.")] = None,
    window: Annotated[
        float,
        typer.Option(
            "--window",
            parser=parse_seconds,
            metavar="DURATION",
            show_default="10m",
            help="Length of the utilization graph.",
        ),
    ] = 600.0,
) -> None:
    """Show workers and GPUs live. Each GPU has its memory, utilization, and when a policy stops its instances."""
    live = not once and sys.stdout.isatty()

    async def work(api: "Api") -> None:
        out = console()
        if not live:
            with out.capture() as captured:
                out.print(view_of(await _read(api, worker, window, None), lines=None))
            print("\n".join(line.rstrip() for line in captured.get().splitlines()))
            return
        from rich.live import Live  # noqa: PLC0415 - slow to import

        snapshot = await _read(api, worker, window, out.height)
        with Live(view_of(snapshot, lines=out.height), console=out, screen=True, auto_refresh=False) as screen:
            while True:
                await asyncio.sleep(_PERIOD_S)
                note = ""
                try:
                    snapshot = await _read(api, worker, window, out.height)
                except CliError as error:  # any error, while a controller restarts
                    note = f"{str(error).splitlines()[0]}; retrying, last read at {snapshot.now.astimezone():%H:%M:%S}"
                screen.update(view_of(snapshot, lines=out.height, note=note), refresh=True)

    run(ctx, work, endless=live)


async def _read(api: "Api", worker: str | None, window_s: float, lines: int | None) -> Snapshot:
    """Reads what fits the terminal."""
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
    return Snapshot(
        url=api.url,
        now=datetime.now(UTC),
        window_s=window_s,
        workers=workers,
        gpus=gpus,
        gpus_in_all=max(len(gpus), sum(w.status.gpus for w in workers)),
        instances=instances,
        series=series,
    )
