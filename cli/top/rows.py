"""Rows of the live `top`: one for each GPU with its holders, and one for each worker without GPUs. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cli.text.formatting import DASH, gib, name_of_gpu, or_dash, percent, printable, short_gpu
from cli.top.snapshot import Held, Snapshot, held_by_all
from schemas.printing import first_of

if TYPE_CHECKING:  # slow to import
    from schemas.api.gpus import GpuClaimView, GpuView
    from schemas.api.workers import WorkerView

_MOST_HOLDERS: Final = 2  # named in a row; filters find all
GRAPH: Final = "GRAPH"  # replaced by the title of the graphs, which names their window


class Row(NamedTuple):
    """A row: its cells, the values of `SORTED`, the text that filters search, and the UUID of its GPU."""

    cells: Sequence[str]
    orders: Sequence[float | str | None]
    words: str
    gpu: str | None


class _Source(NamedTuple):
    """The objects of a row."""

    worker: "WorkerView | None"
    gpu: "GpuView | None"
    held: Held

    @property
    def name(self) -> str:
        if self.gpu is not None:
            return self.gpu.status.worker
        return self.worker.name if self.worker is not None else DASH

    @property
    def claims(self) -> "Sequence[GpuClaimView]":
        return () if self.gpu is None else sorted(self.gpu.status.claims, key=lambda claim: claim.instance)

    @property
    def state(self) -> str:
        """The state that keeps new instances away, of the worker, else of the GPU; else `ready`."""
        if self.worker is not None and self.worker.status.state != "ready":
            return self.worker.status.state
        if self.gpu is None or self.gpu.status.health == "ok":
            return "cordoned" if self.gpu is not None and self.gpu.spec.cordoned else "ready"
        return self.gpu.status.health


def _used(source: _Source) -> float | None:
    return None if source.gpu is None else source.gpu.status.utilization


def _gpu(source: _Source) -> str:
    return f"{source.name}:{DASH}" if source.gpu is None else name_of_gpu(source.gpu)


def _instances(source: _Source) -> str:
    return first_of([claim.instance for claim in source.claims], _MOST_HOLDERS) or DASH


def _deployments(source: _Source) -> list[str]:
    return sorted({claim.deployment for claim in source.claims})


class Column(NamedTuple):
    """A column.

    Attributes:
        cell: its text in a row.
        order: the value by which rows are sorted; None is unknown, and last.
        falling: the highest value is first.
        rank: on a narrow terminal the column with the highest rank leaves first; 0: it stays.
    """

    title: str
    cell: Callable[[_Source], str]
    order: Callable[[_Source], float | str | None] | None = None
    falling: bool = False
    rank: int = 0


COLUMNS: Final = (
    Column("WORKER", lambda f: f.name, lambda f: f.name, rank=12),
    Column("GPU", _gpu),
    Column("ID", lambda f: short_gpu(f.gpu.uid) if f.gpu else DASH, rank=10),
    Column("MODEL", lambda f: or_dash(f.gpu.status.model) if f.gpu else DASH, rank=11),
    Column("STATE", lambda f: f.state, lambda f: f.state, rank=3),
    Column("UTIL", lambda f: percent(_used(f)), _used, falling=True),
    Column(GRAPH, lambda _: "", rank=8),
    Column("USED", lambda f: _memory(f, "used_mib"), lambda f: _mib(f, "used_mib"), falling=True, rank=5),
    Column("CLAIMED", lambda f: _memory(f, "claimed_mib"), lambda f: _mib(f, "claimed_mib"), falling=True, rank=2),
    Column("MEMORY", lambda f: _memory(f, "memory_mib"), rank=7),
    Column("INSTANCE", _instances),
    Column(
        "DEPLOYMENT",
        lambda f: first_of(_deployments(f), _MOST_HOLDERS) or DASH,
        lambda f: next(iter(_deployments(f)), None),
        rank=6,
    ),
    Column("IDLE FOR", lambda f: f.held.idle_for, lambda f: f.held.idle_s, falling=True, rank=4),
    Column("STOPS IN", lambda f: f.held.stops_in, lambda f: f.held.stops_in_s, rank=1),
)
SORTED: Final = tuple(column for column in COLUMNS if column.order is not None)


def rows_of(snapshot: Snapshot) -> list[Row]:
    """All rows, by worker and index of the GPU."""
    return [_row(source) for source in _sources(snapshot)]


def _sources(snapshot: Snapshot) -> Iterator[_Source]:
    workers = {worker.name: worker for worker in snapshot.workers}
    empty = workers.keys() - {gpu.status.worker for gpu in snapshot.gpus}
    alone = [_Source(workers[name], None, Held()) for name in empty]
    held = [_Source(workers.get(gpu.status.worker), gpu, held_by_all(gpu, snapshot)) for gpu in snapshot.gpus]
    yield from sorted(alone + held, key=_position)


def _position(source: _Source) -> tuple[str, int, str]:
    return (source.name, -1, "") if source.gpu is None else (source.name, source.gpu.status.index, source.gpu.uid)


def _row(source: _Source) -> Row:
    gpu = source.gpu
    holders = (name for claim in source.claims for name in (claim.deployment, claim.instance))
    searched = [source.name, _gpu(source), *((gpu.uid, gpu.status.model) if gpu else ()), *holders]
    return Row(
        [printable(column.cell(source)) for column in COLUMNS],
        [column.order(source) for column in SORTED if column.order is not None],
        "\n".join(searched).lower(),
        gpu.uid if gpu else None,
    )


def _mib(source: _Source, field: str) -> float | None:
    return None if source.gpu is None else getattr(source.gpu.status, field)


def _memory(source: _Source, field: str) -> str:
    return DASH if source.gpu is None else gib(getattr(source.gpu.status, field))
