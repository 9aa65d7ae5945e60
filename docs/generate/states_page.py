"""docs/states.md: phases and their edges, from controller/domain/phases.py. What a phase means stands here as data."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from controller.domain.phases import (
    DEPLOYMENT_PHASES,
    FINAL,
    HOLDS_CLAIMS,
    INSTANCE_EDGES,
    REMOVED,
    WORKER_EDGES,
    InstancePhase,
    WorkerPhase,
)
from tables import code, sentence, table

P = InstancePhase
W = WorkerPhase
Edges = Mapping[Any, Mapping[Any, Any]]

HEAD: Final = """\
# States

<!-- Written by `make reference` from controller/domain/phases.py. Do not edit. -->

Every object is in one phase. The edges below are the only legal changes: any other raises an error, and a write also
requires the phase that was read before. "Taken by" names the reconciler.
"""
INSTANCES: Final[Mapping[InstancePhase, str]] = {
    P.PENDING: "It has no place. `gpuward describe instance` says why.",
    P.ANALYZING: "A computation works out what the model needs.",
    P.SCHEDULED: "Its claims are committed, and its workers get start commands.",
    P.STARTING: "Its process starts, and is not ready yet.",
    P.RUNNING: "Its process runs, and answers its probe where it has one.",
    P.UNHEALTHY: "Its process runs and its probe fails.",
    P.BACKOFF: "It ended or failed to start, and waits for its next start.",
    P.SUCCEEDED: "A task that ended with exit code 0.",
    P.FAILED: "It failed for good: a terminal error, or all retries are used up.",
    P.UNREACHABLE: "A worker of it is silent. What it held stays claimed.",
    P.REPLACED: "Its substitute has claims. It stops as soon as its worker is back or proven dead.",
    P.STOPPING: "Its process is being stopped. The row goes when the end is proven.",
}
WORKERS: Final[Mapping[WorkerPhase, str]] = {
    W.JOINING: "It has joined, and its first full report is still to come.",
    W.READY: "It reports. Only here are instances placed, unless it is cordoned or draining.",
    W.UNREACHABLE: "It is silent. Its instances stay where they are.",
    W.LOST: "It was silent for too long. Its instances are replaced elsewhere, and their claims stay fenced.",
}
_EDGE_TITLES: Final = ("from", "to", "taken by", "on")


def page() -> str:
    """The whole page."""
    instances = [
        (code(phase), INSTANCES[phase], "yes" if phase in HOLDS_CLAIMS else "no", "yes" if phase in FINAL else "no")
        for phase in InstancePhase
    ]
    removed = ("any", "(removed)", REMOVED.by, sentence(REMOVED.on))
    workers = [(code(phase), WORKERS[phase]) for phase in WorkerPhase]
    deployments = [(code(phase), sentence(text)) for phase, text in DEPLOYMENT_PHASES.items()]
    lines = [
        HEAD,
        "## Instances",
        "",
        *table(("phase", "meaning", "holds claims", "final"), instances),
        "The diagram leaves out one edge of every phase: the one to `stopping`.",
        "",
        *_diagram(INSTANCE_EDGES, P.PENDING, P.STOPPING),
        *table(_EDGE_TITLES, [*_rows(INSTANCE_EDGES), removed]),
        "## Workers",
        "",
        "`cordoned` and `draining` are the operator's. They stand beside the phase.",
        "",
        *table(("phase", "meaning"), workers),
        *_diagram(WORKER_EDGES, W.JOINING, None),
        *table(_EDGE_TITLES, _rows(WORKER_EDGES)),
        "## Deployments",
        "",
        "A deployment's phase follows from its instances at every step, so it has no edges of its own.",
        "It is in the first of these phases that holds:",
        "",
        *table(("phase", "holds when"), deployments),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _diagram(edges: Edges, first: StrEnum, last: StrEnum | None) -> list[str]:
    """All edges but those to `last`, which every other phase has."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    for old, news in edges.items():
        if last is not None and old != last and last not in news:
            raise ValueError(f"{old} has no edge to {last}, so the diagram has to draw those to it")
        lines += [f"    {old} --> {new}" for new in news if new != last]
    if last is not None:
        lines.append(f"    {last} --> [*]")
    return [*lines, "```", ""]


def _rows(edges: Edges) -> Iterator[Sequence[str]]:
    for old, news in edges.items():
        for new, edge in news.items():
            yield code(old), code(new), edge.by, sentence(edge.on)
