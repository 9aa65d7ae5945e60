"""The tables that `top --once` prints: workers, and GPUs with their holders. Pure."""

from datetime import datetime
from typing import TYPE_CHECKING, Final

from cli.printing.table import Table
from cli.text.formatting import DASH, age, gib, percent, span
from cli.text.sparkline import sparkline
from cli.top.snapshot import Snapshot, held_by

if TYPE_CHECKING:  # slow to import
    from schemas.api.gpus import GpuView
    from schemas.api.workers import WorkerView

_WORKERS: Final = ("WORKER", "STATE", "GPUS", "INSTANCES", "CLAIMED", "SEEN")
_GPUS: Final = ("WORKER", "GPU", "USED/CLAIMED/TOTAL", "UTIL", "", "INSTANCE", "DEPLOYMENT", "IDLE FOR", "STOPS IN")
_GRAPH: Final = 4  # its column, of which the title names the window


def worker_table(snapshot: Snapshot) -> Table:
    """A row for each worker."""
    return Table(_WORKERS, [_worker(view, snapshot.now) for view in snapshot.workers], ("SEEN", "INSTANCES"))


def gpu_table(snapshot: Snapshot) -> Table:
    """A row for each claim on a GPU, or one for a GPU without claims."""
    graph = f"LAST {span(snapshot.window_s).upper()}"
    titles = [*_GPUS[:_GRAPH], graph, *_GPUS[_GRAPH + 1 :]]
    rows = [row for gpu in snapshot.gpus for row in _gpu(gpu, snapshot)]
    return Table(titles, rows, (graph, "DEPLOYMENT", "USED/CLAIMED/TOTAL"))


def _worker(view: "WorkerView", now: datetime) -> list[str]:
    status = view.status
    gpus = str(status.gpus) if status.gpus_known else "unknown"
    claimed = f"{gib(status.claimed_mib)}/{gib(status.memory_mib)}"
    return [view.name, status.state, gpus, str(status.instances), claimed, age(status.last_seen, now)]


def _gpu(view: "GpuView", snapshot: Snapshot) -> list[list[str]]:
    status = view.status
    memory = "/".join(gib(mib) for mib in (status.used_mib, status.claimed_mib, status.memory_mib))
    drawn = sparkline(snapshot.series.get(view.uid, ()), 30)
    first = [status.worker, str(status.index), memory, percent(status.utilization), drawn]
    rows = []
    for claim in status.claims:
        held = held_by(snapshot.instances.get(claim.instance), snapshot.now)
        rows.append([claim.instance, claim.deployment, held.idle_for, held.stops_in])
    again = [status.worker, "", "", "", ""]
    return [(first if n == 0 else again) + cells for n, cells in enumerate(rows or [[DASH, "", "", ""]])]
