"""The cluster as `top` read it at one time, and the verdict on an instance that holds a GPU. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from cli.text.formatting import DASH, age, or_dash
from cli.text.sparkline import Values

if TYPE_CHECKING:  # slow to import
    from schemas.api.gpus import GpuView
    from schemas.api.instances import InstanceView
    from schemas.api.workers import WorkerView


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The objects that were read at one time.

    Attributes:
        window_s: length of the utilization graphs.
        gpus_in_all: number of GPUs, also of those that were not read.
        instances: by name, also those that hold no GPU of `gpus`.
        series: utilization by UUID of the GPU.
        pending: number of pending instances; None: unknown.
        scope: the worker that is shown; None: all.
    """

    url: str
    now: datetime
    window_s: float
    workers: "Sequence[WorkerView]"
    gpus: "Sequence[GpuView]"
    gpus_in_all: int
    instances: "Mapping[str, InstanceView]" = field(default_factory=dict)
    series: Mapping[str, Values] = field(default_factory=dict)
    pending: int | None = None
    scope: str | None = None


class Held(NamedTuple):
    """The verdict of an instance's policy, with two times as text and in seconds (None: not idle, no stop is due)."""

    idle_for: str = DASH
    stops_in: str = DASH
    verdict: str = ""
    idle_s: float | None = None
    stops_in_s: float | None = None


def held_by_all(view: "GpuView", snapshot: Snapshot) -> Held:
    """The verdict on the holder of the GPU that a policy stops first, else on the one that is idle for longest."""
    verdicts = (held_by(snapshot.instances.get(claim.instance), snapshot.now) for claim in view.status.claims)
    return min(verdicts, key=_urgency, default=Held())


def _urgency(held: Held) -> tuple[bool, float, float]:
    return held.stops_in_s is None, held.stops_in_s or 0.0, -(held.idle_s or 0.0)


def held_by(instance: "InstanceView | None", now: datetime) -> Held:
    judged = instance.status.utilization if instance is not None else None
    if judged is None:
        return Held()
    idle_s = None if judged.low_since is None else (now - judged.low_since).total_seconds()
    due, due_s, dry_run = DASH, None, " (dry run)" if judged.dry_run else ""
    if judged.verdict == "unknown" and judged.due_at is None:
        due = or_dash(judged.reason)
    elif judged.action == "notify":
        due = DASH  # the policy stops nothing
    elif judged.verdict == "idle":
        due, due_s = "idle" + dry_run, 0.0
    elif judged.due_at is not None and judged.low_since is not None:
        later = max(judged.due_at, now)
        due, due_s = age(now, later) + dry_run, (later - now).total_seconds()
    return Held(age(judged.low_since, now), due, judged.verdict, idle_s, due_s)
