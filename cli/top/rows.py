"""Rows of the live `top`: one for each claim on a GPU, each free GPU, and each worker without GPUs. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cli.text.formatting import DASH, gib, or_dash, percent, printable, short_gpu
from cli.top.snapshot import Held, Snapshot, held_by

if TYPE_CHECKING:  # slow to import
    from schemas.api.gpus import GpuClaimView, GpuView
    from schemas.api.workers import WorkerView

GRAPH: Final = "GRAPH"  # in place of the title of the graphs, which names their window


class Row(NamedTuple):
    """A row: its cells, what it is sorted by, what a filter searches, and its GPU; None: it has none."""

    cells: Sequence[str]
    orders: Sequence[float | str | None]
    words: str
    gpu: str | None


class _Facts(NamedTuple):
    """What a row is made of."""

    worker: "WorkerView | None"
    gpu: "GpuView | None"
    claim: "GpuClaimView | None"
    held: Held

    @property
    def name(self) -> str:
        """Of the worker."""
        if self.gpu is not None:
            return self.gpu.status.worker
        return self.worker.name if self.worker is not None else DASH

    @property
    def state(self) -> str:
        """Why nothing new is placed on it, else `ready`: of the worker first, then of the GPU."""
        if self.worker is not None and self.worker.status.state != "ready":
            return self.worker.status.state
        if self.gpu is None or self.gpu.status.health == "ok":
            return "cordoned" if self.gpu is not None and self.gpu.spec.cordoned else "ready"
        return self.gpu.status.health


def _used(facts: _Facts) -> float | None:
    return None if facts.gpu is None else facts.gpu.status.utilization


def _deployment(facts: _Facts) -> str | None:
    return None if facts.claim is None else facts.claim.deployment


class Column(NamedTuple):
    """A column.

    Attributes:
        cell: its text in a row.
        order: what rows are sorted by; None as a value is unknown and comes last.
        falling: the highest comes first.
        rank: where a terminal is narrow, the column with the highest one leaves first; 0: it stays.
    """

    title: str
    cell: Callable[[_Facts], str]
    order: Callable[[_Facts], float | str | None] | None = None
    falling: bool = False
    rank: int = 0


COLUMNS: Final = (
    Column("WORKER", lambda f: f.name, lambda f: f.name),
    Column("GPU", lambda f: str(f.gpu.status.index) if f.gpu else DASH),
    Column("ID", lambda f: short_gpu(f.gpu.uid) if f.gpu else DASH, rank=10),
    Column("MODEL", lambda f: or_dash(f.gpu.status.model) if f.gpu else DASH, rank=11),
    Column("STATE", lambda f: f.state, lambda f: f.state, rank=3),
    Column("UTIL", lambda f: percent(_used(f)), _used, falling=True),
    Column(GRAPH, lambda _: "", rank=8),
    Column("USED", lambda f: _memory(f, "used_mib"), lambda f: _mib(f, "used_mib"), falling=True, rank=5),
    Column("CLAIMED", lambda f: _memory(f, "claimed_mib"), lambda f: _mib(f, "claimed_mib"), falling=True, rank=2),
    Column("MEMORY", lambda f: _memory(f, "memory_mib"), rank=7),
    Column("INSTANCE", lambda f: f.claim.instance if f.claim else DASH),
    Column("DEPLOYMENT", lambda f: _deployment(f) or DASH, _deployment, rank=6),
    Column("IDLE FOR", lambda f: f.held.idle_for, lambda f: f.held.idle_s, falling=True, rank=4),
    Column("STOPS IN", lambda f: f.held.stops_in, lambda f: f.held.stops_in_s, rank=1),
)
SORTED: Final = tuple(column for column in COLUMNS if column.order is not None)


def rows_of(snapshot: Snapshot) -> list[Row]:
    """All rows, by worker and index of the GPU."""
    return [_row(facts) for facts in _facts(snapshot)]


def _facts(snapshot: Snapshot) -> Iterator[_Facts]:
    workers = {worker.name: worker for worker in snapshot.workers}
    empty = workers.keys() - {gpu.status.worker for gpu in snapshot.gpus}
    alone = [_Facts(workers[name], None, None, Held()) for name in empty]
    found = [
        _Facts(workers.get(gpu.status.worker), gpu, claim, _held(claim, snapshot))
        for gpu in snapshot.gpus
        for claim in (gpu.status.claims or (None,))
    ]
    yield from sorted(alone + found, key=_place)


def _place(facts: _Facts) -> tuple[str, int, str]:
    index = facts.gpu.status.index if facts.gpu is not None else -1
    return facts.name, index, facts.claim.instance if facts.claim is not None else ""


def _held(claim: "GpuClaimView | None", snapshot: Snapshot) -> Held:
    return Held() if claim is None else held_by(snapshot.instances.get(claim.instance), snapshot.now)


def _row(facts: _Facts) -> Row:
    gpu, claim = facts.gpu, facts.claim
    looked_at = [facts.name, *((gpu.uid, gpu.status.model) if gpu else ()), *_names(claim)]
    return Row(
        [printable(column.cell(facts)) for column in COLUMNS],
        [column.order(facts) for column in SORTED if column.order is not None],
        "\n".join(looked_at).lower(),
        gpu.uid if gpu else None,
    )


def _names(claim: "GpuClaimView | None") -> tuple[str, ...]:
    return () if claim is None else (claim.deployment, claim.instance)


def _mib(facts: _Facts, field: str) -> float | None:
    return None if facts.gpu is None else getattr(facts.gpu.status, field)


def _memory(facts: _Facts, field: str) -> str:
    return DASH if facts.gpu is None else gib(getattr(facts.gpu.status, field))
