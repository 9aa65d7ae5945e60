"""The tables of `top`: workers, and GPUs with their holders, cut to the height of the terminal. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cli.formatting import DASH, age, gib, or_dash, percent, printable, span
from cli.sparkline import Values, sparkline
from schemas.api.gpus import GpuClaimView, GpuView
from schemas.api.instances import InstanceView
from schemas.api.workers import WorkerView

if TYPE_CHECKING:  # slow to import
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_WORKERS: Final = ("WORKER", "STATE", "GPUS", "INSTANCES", "CLAIMED", "SEEN")
_GPUS: Final = ("WORKER", "GPU", "USED/CLAIMED/TOTAL", "UTIL", "", "INSTANCE", "DEPLOYMENT", "IDLE FOR", "STOPS IN")
_OTHER_LINES: Final = 7  # lines beside the rows: heading, sums, titles, blank lines, notes
_MIN_ROWS: Final = 3
_COLOURS: Final = {"busy": "green", "idle": "red", "unknown": "yellow"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was read at one time. `gpus_in_all` counts also the GPUs that were not read."""

    url: str
    now: datetime
    window_s: float
    workers: Sequence[WorkerView]
    gpus: Sequence[GpuView]
    gpus_in_all: int
    instances: Mapping[str, InstanceView] = field(default_factory=dict)
    series: Mapping[str, Values] = field(default_factory=dict)


def view_of(snapshot: Snapshot, *, lines: int | None, note: str = "") -> "Group":
    """The snapshot as tables.

    Args:
        snapshot: what was read.
        lines: height of the terminal; None: unlimited.
        note: the present problem, if there is one.
    """
    from rich.console import Group  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415 - slow to import

    shown_workers, shown_gpus = _rows_that_fit(snapshot, lines)
    parts: list[Text | Table] = [Text(f"{snapshot.url}  {snapshot.now.astimezone():%H:%M:%S}")]
    parts.append(Text(_sums(snapshot)))
    if note:
        parts.append(Text(printable(note), style="yellow"))
    parts.append(_table(_WORKERS, [_worker(w, snapshot.now) for w in snapshot.workers[:shown_workers]]))
    parts += _more(len(snapshot.workers) - shown_workers, "workers", "use gpuward get workers to see all")
    rows: list[list[str]] = []
    verdicts: list[str] = []
    for gpu in snapshot.gpus:
        for row, verdict in _gpu(gpu, snapshot):
            rows.append(row)
            verdicts.append(verdict)
    titles = [title or f"LAST {span(snapshot.window_s).upper()}" for title in _GPUS]
    parts += [Text(""), _table(titles, rows[:shown_gpus], verdicts)]
    left_out = snapshot.gpus_in_all - len({(r[0], r[1]) for r in rows[:shown_gpus] if r[1]})
    parts += _more(left_out, "GPUs", "use --worker NAME to see those of one worker")
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


def gpus_that_fit(lines: int | None, most: int) -> int:
    """How many GPUs to read for a terminal of so many lines."""
    return most if lines is None else max(_MIN_ROWS, min(most, lines))


def _rows_that_fit(snapshot: Snapshot, lines: int | None) -> tuple[int, int]:
    """How many rows of workers and of GPUs fit. Workers get at most a third."""
    if lines is None:
        return len(snapshot.workers), sum(max(1, len(g.status.claims)) for g in snapshot.gpus)
    rows = max(2 * _MIN_ROWS, lines - _OTHER_LINES)
    workers = min(len(snapshot.workers), max(_MIN_ROWS, rows // 3))
    return workers, rows - workers


def _worker(view: WorkerView, now: datetime) -> list[str]:
    status = view.status
    gpus = str(status.gpus) if status.gpus_known else "unknown"
    claimed = f"{gib(status.claimed_mib)}/{gib(status.memory_mib)}"
    return [view.name, status.state, gpus, str(status.instances), claimed, age(status.last_seen, now)]


def _gpu(view: GpuView, snapshot: Snapshot) -> list[tuple[list[str], str]]:
    """A row for each claim on the GPU, or one row without a claim. Each comes with its verdict."""
    status = view.status
    memory = "/".join(gib(mib) for mib in (status.used_mib, status.claimed_mib, status.memory_mib))
    drawn = sparkline(snapshot.series.get(view.uid, ()), 30)
    first = [status.worker, str(status.index), memory, percent(status.utilization), drawn]
    rows = [_claim(claim, snapshot) for claim in status.claims] or [([DASH, "", "", ""], "")]
    again = [status.worker, "", "", "", ""]
    return [((first if n == 0 else again) + cells, verdict) for n, (cells, verdict) in enumerate(rows)]


def _claim(claim: GpuClaimView, snapshot: Snapshot) -> tuple[list[str], str]:
    """The holder, how long it has been idle, when its policy will act, and its verdict."""
    instance = snapshot.instances.get(claim.instance)
    judged = instance.status.utilization if instance else None
    if judged is None:
        return [claim.instance, claim.deployment, DASH, DASH], ""
    idle_for = age(judged.low_since, snapshot.now)
    due, dry_run = DASH, " (dry run)" if judged.dry_run else ""
    if judged.verdict == "unknown" and judged.due_at is None:
        due = or_dash(judged.reason)
    elif judged.action == "notify":
        due = DASH  # the policy stops nothing
    elif judged.verdict == "idle":
        due = "idle" + dry_run
    elif judged.due_at is not None and judged.low_since is not None:
        due = age(snapshot.now, max(judged.due_at, snapshot.now)) + dry_run
    return [claim.instance, claim.deployment, idle_for, due], judged.verdict


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


def _more(count: int, what: str, advice: str) -> "list[Text | Table]":
    from rich.text import Text  # noqa: PLC0415 - slow to import

    return [Text(f"… {count} more {what}; {advice}", style="dim")] if count > 0 else []
