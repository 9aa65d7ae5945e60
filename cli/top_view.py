"""What `top` shows: workers, and their GPUs with what runs on them, cut to what fits. Pure, but for building tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cli.figures import NOTHING, age, gib, or_nothing, percent, printable, span
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
_AROUND: Final = 6  # lines beside the rows: heading, titles, empty ones, the notes
_FEWEST: Final = 3
_COLOURS: Final = {"busy": "green", "idle": "red", "unknown": "yellow"}


@dataclass(frozen=True, slots=True)
class Picture:
    """What was read at one moment. There may be more GPUs than are in it."""

    url: str
    now: datetime
    window_s: float
    workers: Sequence[WorkerView]
    gpus: Sequence[GpuView]
    gpus_in_all: int
    instances: Mapping[str, InstanceView] = field(default_factory=dict)
    series: Mapping[str, Values] = field(default_factory=dict)


def view_of(picture: Picture, *, lines: int | None, note: str = "") -> "Group":
    """The picture as tables.

    Args:
        picture: what was read.
        lines: how many fit; None: all is shown.
        note: what is wrong now, if anything.
    """
    from rich.console import Group  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415 - slow to import

    shown_workers, shown_gpus = _fitting(picture, lines)
    parts: list[Text | Table] = [Text(f"{picture.url}  {picture.now.astimezone():%H:%M:%S}")]
    if note:
        parts.append(Text(printable(note), style="yellow"))
    parts.append(_table(_WORKERS, [_worker(w, picture.now) for w in picture.workers[:shown_workers]]))
    parts += _more(len(picture.workers) - shown_workers, "workers", "gpuward get workers lists all")
    rows: list[list[str]] = []
    verdicts: list[str] = []
    for gpu in picture.gpus:
        for row, verdict in _gpu(gpu, picture):
            rows.append(row)
            verdicts.append(verdict)
    titles = [title or f"LAST {span(picture.window_s).upper()}" for title in _GPUS]
    parts += [Text(""), _table(titles, rows[:shown_gpus], verdicts)]
    left_out = picture.gpus_in_all - len({(r[0], r[1]) for r in rows[:shown_gpus] if r[1]})
    parts += _more(left_out, "GPUs", "--worker NAME shows those of one worker")
    return Group(*parts)


def gpus_that_fit(lines: int | None, most: int) -> int:
    """How many GPUs are worth reading for so many lines."""
    return most if lines is None else max(_FEWEST, min(most, lines))


def _fitting(picture: Picture, lines: int | None) -> tuple[int, int]:
    """How many rows of workers and of GPUs fit. Workers get a third, or less where they are few."""
    if lines is None:
        return len(picture.workers), sum(max(1, len(g.status.claims)) for g in picture.gpus)
    room = max(2 * _FEWEST, lines - _AROUND)
    workers = min(len(picture.workers), max(_FEWEST, room // 3))
    return workers, room - workers


def _worker(view: WorkerView, now: datetime) -> list[str]:
    status = view.status
    gpus = str(status.gpus) if status.gpus_known else "unknown"
    claimed = f"{gib(status.claimed_mib)}/{gib(status.memory_mib)}"
    return [view.name, status.state, gpus, str(status.instances), claimed, age(status.last_seen, now)]


def _gpu(view: GpuView, picture: Picture) -> list[tuple[list[str], str]]:
    """A row for each claim on the GPU, or one without; and each one's verdict."""
    status = view.status
    memory = "/".join(gib(mib) for mib in (status.used_mib, status.claimed_mib, status.memory_mib))
    drawn = sparkline(picture.series.get(view.uid, ()), 30)
    first = [status.worker, str(status.index), memory, percent(status.utilization), drawn]
    rows = [_claim(claim, picture) for claim in status.claims] or [([NOTHING, "", "", ""], "")]
    again = [status.worker, "", "", "", ""]
    return [((first if n == 0 else again) + cells, verdict) for n, (cells, verdict) in enumerate(rows)]


def _claim(claim: GpuClaimView, picture: Picture) -> tuple[list[str], str]:
    """Who holds it, since when it is idle, and in which time a policy will act."""
    instance = picture.instances.get(claim.instance)
    watched = instance.status.utilization if instance else None
    if watched is None:
        return [claim.instance, claim.deployment, NOTHING, NOTHING], ""
    idle_for = age(watched.low_since, picture.now)
    due = NOTHING
    if watched.verdict == "unknown" and watched.due_at is None:
        due = or_nothing(watched.reason)
    elif watched.dry_run or watched.action == "notify":
        due = NOTHING  # it takes nothing away
    elif watched.verdict == "idle":
        due = "idle"
    elif watched.due_at is not None and watched.low_since is not None:
        due = age(picture.now, max(watched.due_at, picture.now))
    return [claim.instance, claim.deployment, idle_for, due], watched.verdict


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
