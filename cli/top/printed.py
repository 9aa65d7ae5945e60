"""The tables that `top --once` prints: workers, and GPUs with their holders. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cli.text.formatting import DASH, age, gib, percent, printable, span
from cli.text.sparkline import sparkline
from cli.top.snapshot import Snapshot, held_by

if TYPE_CHECKING:  # slow to import
    from rich.console import Group
    from rich.table import Table

    from schemas.api.gpus import GpuClaimView, GpuView
    from schemas.api.workers import WorkerView

_WORKERS: Final = ("WORKER", "STATE", "GPUS", "INSTANCES", "CLAIMED", "SEEN")
_GPUS: Final = ("WORKER", "GPU", "USED/CLAIMED/TOTAL", "UTIL", "", "INSTANCE", "DEPLOYMENT", "IDLE FOR", "STOPS IN")
_COLOURS: Final = {"busy": "green", "idle": "red", "unknown": "yellow"}


def view_of(snapshot: Snapshot) -> "Group":
    """The snapshot as tables."""
    from rich.console import Group  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415 - slow to import

    parts: list[Text | Table] = [Text(f"{snapshot.url}  {snapshot.now.astimezone():%H:%M:%S}")]
    parts.append(Text(_sums(snapshot)))
    parts.append(_table(_WORKERS, [_worker(w, snapshot.now) for w in snapshot.workers]))
    rows: list[list[str]] = []
    verdicts: list[str] = []
    for gpu in snapshot.gpus:
        for row, verdict in _gpu(gpu, snapshot):
            rows.append(row)
            verdicts.append(verdict)
    titles = [title or f"LAST {span(snapshot.window_s).upper()}" for title in _GPUS]
    parts += [Text(""), _table(titles, rows, verdicts)]
    left_out = snapshot.gpus_in_all - len(snapshot.gpus)
    if left_out > 0:
        parts.append(Text(f"… {left_out} more GPUs; use --worker NAME to see those of one worker", style="dim"))
    return Group(*parts)


def _sums(snapshot: Snapshot) -> str:
    """All workers together, and the mean utilization of the GPUs that were read and have a sample."""
    ready = sum(worker.status.state == "ready" for worker in snapshot.workers)
    of_all = [worker.status for worker in snapshot.workers]
    known = [gpu.status.utilization for gpu in snapshot.gpus if gpu.status.utilization is not None]
    mean = percent(sum(known) / len(known) if known else None)
    return (
        f"{ready} of {len(of_all)} workers ready, {snapshot.gpus_in_all} GPUs, "
        f"{gib(sum(one.claimed_mib for one in of_all))} of {gib(sum(one.memory_mib for one in of_all))} claimed, "
        f"mean utilization {mean} ({len(known)} of {len(snapshot.gpus)} GPUs tell)"
    )


def _worker(view: "WorkerView", now: datetime) -> list[str]:
    status = view.status
    gpus = str(status.gpus) if status.gpus_known else "unknown"
    claimed = f"{gib(status.claimed_mib)}/{gib(status.memory_mib)}"
    return [view.name, status.state, gpus, str(status.instances), claimed, age(status.last_seen, now)]


def _gpu(view: "GpuView", snapshot: Snapshot) -> list[tuple[list[str], str]]:
    """A row for each claim on the GPU, or one row without a claim. Each comes with its verdict."""
    status = view.status
    memory = "/".join(gib(mib) for mib in (status.used_mib, status.claimed_mib, status.memory_mib))
    drawn = sparkline(snapshot.series.get(view.uid, ()), 30)
    first = [status.worker, str(status.index), memory, percent(status.utilization), drawn]
    rows = [_claim(claim, snapshot) for claim in status.claims] or [([DASH, "", "", ""], "")]
    again = [status.worker, "", "", "", ""]
    return [((first if n == 0 else again) + cells, verdict) for n, (cells, verdict) in enumerate(rows)]


def _claim(claim: "GpuClaimView", snapshot: Snapshot) -> tuple[list[str], str]:
    """The holder, how long it has been idle, when its policy will act, and its verdict."""
    held = held_by(snapshot.instances.get(claim.instance), snapshot.now)
    return [claim.instance, claim.deployment, held.idle_for, held.stops_in], held.verdict


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], verdicts: Sequence[str] = ()) -> "Table":
    from rich.table import Table  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415 - slow to import

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for n, row in enumerate(rows):
        colour = _COLOURS.get(verdicts[n], "") if verdicts else ""
        table.add_row(*(Text(printable(cell), style=colour if k >= len(row) - 2 else "") for k, cell in enumerate(row)))
    return table
