"""The verb `top`: workers and GPUs now, live on a terminal, or printed once as two tables."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.printing.output import print_table
from cli.printing.table import Table
from cli.runner import client, parse_seconds
from cli.terminal.screen import fit_for_screens
from cli.text.formatting import DASH, age, gib, name_of_gpu, percent, printable, span
from cli.text.sparkline import sparkline

if TYPE_CHECKING:  # slow to import
    from cli.top.snapshot import Snapshot
    from schemas.api.gpus import GpuView
    from schemas.api.workers import WorkerView

_WORKERS: Final = ("WORKER", "STATE", "GPUS", "INSTANCES", "CLAIMED", "SEEN")
app = typer.Typer()


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
    """Show workers and GPUs live. Each GPU has its memory, utilization and holders, and when a policy stops them.

    Keys: `q` quits, `s` sorts by the next column and `S` reverses, `/` filters by worker, GPU, model or deployment, the
    arrows, PgUp, PgDn, Home and End scroll, `?` lists the keys. A pipe gets what `--once` prints.
    """
    live = not once and fit_for_screens()
    with client(ctx, endless=live) as api:
        from cli.top.read import MOST_PRINTED, Reader  # noqa: PLC0415 - slow to import

        reader = Reader(api, worker, window)
        if live:
            from cli.top.live import Live  # noqa: PLC0415 - slow to import

            Live(reader).run()
            return
        _print(reader.all(most=MOST_PRINTED, graphs=True))


def _print(snapshot: "Snapshot") -> None:
    from cli.top.picture import totals  # noqa: PLC0415 - slow to import

    print(printable(f"{snapshot.url}  {snapshot.now.astimezone():%H:%M:%S}"))
    print(printable(", ".join(totals(snapshot))))
    workers = [_worker(view, snapshot.now) for view in snapshot.workers]
    print_table(Table(_WORKERS, workers, ("SEEN", "INSTANCES")), empty=None)
    print()
    print_table(gpu_table(snapshot), empty=None)
    if (left_out := snapshot.gpus_in_all - len(snapshot.gpus)) > 0:
        print(f"{left_out} more GPUs; use --worker NAME to see those of one worker")


def _worker(view: "WorkerView", now: datetime) -> list[str]:
    status = view.status
    gpus = str(status.gpus) if status.gpus_known else "unknown"
    claimed = f"{gib(status.claimed_mib)}/{gib(status.memory_mib)}"
    return [view.name, status.state, gpus, str(status.instances), claimed, age(status.last_seen, now)]


def gpu_table(snapshot: "Snapshot") -> Table:
    """A row for each GPU, with its holders, and the verdict on the holder that a policy stops first."""
    graph = f"LAST {span(snapshot.window_s).upper()}"
    titles = [
        "WORKER", "GPU", "USED/CLAIMED/TOTAL", "UTIL", graph, "INSTANCE", "DEPLOYMENT", "IDLE FOR", "STOPS IN",
    ]  # fmt: skip
    rows = [_gpu(gpu, snapshot) for gpu in snapshot.gpus]
    leaving = ("WORKER", graph, "DEPLOYMENT", "USED/CLAIMED/TOTAL")
    return Table(titles, [cells for cells, _ in rows], leaving, [verdict for _, verdict in rows])


def _gpu(view: "GpuView", snapshot: "Snapshot") -> tuple[list[str], str]:
    """The cells, and the verdict that colours them."""
    from cli.top.snapshot import held_by_all  # noqa: PLC0415 - slow to import

    status = view.status
    memory = "/".join(gib(mib) for mib in (status.used_mib, status.claimed_mib, status.memory_mib))
    drawn = sparkline(snapshot.series.get(view.uid, ()), 30)
    name = name_of_gpu(view)
    instances = ", ".join(sorted(claim.instance for claim in status.claims)) or DASH
    deployments = ", ".join(sorted({claim.deployment for claim in status.claims})) or DASH
    held = held_by_all(view, snapshot)
    cells = [status.worker, name, memory, percent(status.utilization), drawn, instances, deployments]
    return [*cells, held.idle_for, held.stops_in], held.verdict
