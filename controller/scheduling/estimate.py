"""From a spec and its need to an ask: how many GPUs, how much of each, over how many workers, and what is ruled out."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from controller.domain.placement import Ask, Compatibility, Layout, Need, Share
from controller.domain.splits import Split, indivisible, splits
from schemas.manifest.deployment import DeploymentSpec
from schemas.reasons import Reason

_CPU_MILLI: Final = 1000


class _Work(Protocol):
    """What an engine's analysis is made of."""

    @property
    def target(self) -> str: ...
    @property
    def payload(self) -> Mapping[str, Any]: ...


class EngineFacts(Protocol):
    """What the estimate has to know of an engine; every engine is one."""

    name: str

    def validate(self, spec: DeploymentSpec) -> None:
        """Raises ValueError for a spec that it does not take."""

    def compatibility(self, spec: DeploymentSpec) -> Compatibility:
        """What it runs on."""

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """The counts to try on each worker where the user leaves them to us."""

    def chosen(self, name: str) -> "EngineFacts":
        """The engine of that name among those that it stands for; empty: the one that it is without a choice."""


class AnalysingEngine(Protocol):
    """An engine as `input_hash` sees it."""

    name: str

    def analysis(self, spec: DeploymentSpec) -> _Work | None:
        """What the child would be told to run."""


def asks_for(
    spec: DeploymentSpec,
    need: Need,
    engine: EngineFacts,
    *,
    instance: str,
    deployment_uid: str,
    avoid_workers: frozenset[str] = frozenset(),
) -> Ask:
    """What one instance of this spec asks of the scheduler: by its best engine, `otherwise` by the next.

    Args:
        spec: the revision's spec, validated.
        need: what the engine made of the analysis.
        engine: as `engine_for(spec)` says.
        instance: its id.
        deployment_uid: of its deployment.
        avoid_workers: ids of workers to be taken only where nothing else fits.
    """
    names = need.by_engine or (("", need),)
    blank = Ask(instance=instance, deployment_uid=deployment_uid, layouts=(), avoid_workers=avoid_workers)
    ask, *others = (_ask(spec, one, engine.chosen(name), blank) for name, one in reversed(names))
    for better in others:
        ask = replace(better, otherwise=ask)
    return ask


def for_instance(ask: Ask, instance: str, avoid_workers: frozenset[str] = frozenset()) -> Ask:
    """What another instance of the same revision asks: the same, by all its engines."""
    otherwise = None if ask.otherwise is None else for_instance(ask.otherwise, instance, avoid_workers)
    return replace(ask, instance=instance, avoid_workers=avoid_workers, otherwise=otherwise)


def _ask(spec: DeploymentSpec, need: Need, engine: EngineFacts, blank: Ask) -> Ask:
    layouts, tried = _layouts(spec, need, engine)
    resources, compatibility = spec.resources, engine.compatibility(spec)
    capabilities = [c for c in (compatibility.min_compute_capability, need.compute_capability) if c is not None]
    return replace(
        blank,
        layouts=layouts,
        refused=(*need.refused, *dict.fromkeys(reason for _, reason in tried)),
        tried=tried,
        host_memory_mib=need.host_memory_mib if resources.host_memory == "auto" else resources.host_memory,
        cpu_milli=0 if resources.cpus == "auto" else round(resources.cpus * _CPU_MILLI),
        strategy=spec.placement.strategy,
        labels=spec.placement.labels,
        workers=spec.placement.workers,
        gpus=spec.placement.gpus,
        compatibility=replace(compatibility, min_compute_capability=max(capabilities, default=None)),
        engine=engine.name,
    )


def _layouts(
    spec: DeploymentSpec, need: Need, engine: EngineFacts
) -> tuple[tuple[Layout, ...], tuple[tuple[Layout, Reason], ...]]:
    """The layouts to try, and those that the model's heads or vocabulary rule out with their reasons."""
    possible = splits(spec, engine.gpu_counts(spec))
    if need.refused:
        return (), ()
    if not possible:
        return (Layout(gpus=0, memory_mib=0, exclusive=False),), ()
    if isinstance(spec.resources.gpu_memory, int) or not (need.shares or need.memory_mib is not None):
        # More GPUs help only where the need is known to be shared out: not where it is stated per GPU or not known.
        possible = tuple(split for split in possible if split.gpus == possible[0].gpus)
    layouts: list[Layout] = []
    tried: list[tuple[Layout, Reason]] = []
    for split, share in _shares(spec, need, possible):
        layout, reason = _layout(spec, need, split, share), indivisible(need, share.tp)
        if reason is None:
            layouts.append(layout)
        else:
            tried.append((layout, reason))
    return tuple(layouts), tuple(tried)


def _shares(spec: DeploymentSpec, need: Need, possible: Sequence[Split]) -> Iterator[tuple[Split, Share]]:
    """Each split with its share of the need.

    Where the engine measured one split several times, for more and for fewer requests at once, all splits are tried for
    the most requests before any is tried for fewer.
    """
    given = spec.resources.gpu_memory
    if isinstance(given, int) or not need.shares:
        for split in possible:
            # Each data parallel rank holds a copy of its own.
            even = 0 if need.memory_mib is None else -(-need.memory_mib // (split.tp * split.pp))
            yield split, Share(*split.degrees, given if isinstance(given, int) else even)
        return
    measured: defaultdict[tuple[int, int, int], list[Share]] = defaultdict(list)
    for share in need.shares:
        measured[share.tp, share.pp, share.dp].append(share)
    for turn in range(max(map(len, measured.values()))):
        for split in possible:
            # An engine that spreads layers, and splits none of them, has measured a pipeline of as many GPUs.
            of_split = measured.get(split.degrees) or measured.get((1, split.gpus, 1), [])
            if turn < len(of_split):
                yield split, of_split[turn]


def _layout(spec: DeploymentSpec, need: Need, split: Split, share: Share) -> Layout:
    whole = spec.resources.exclusive or spec.resources.gpu_memory == "all"
    # Nobody can know how much of a GPU would do for a need that is neither known nor stated.
    whole = whole or not (share.memory_mib or need.shares or need.memory_mib is not None)
    layout = Layout(split.gpus, share.memory_mib, whole, split.workers)
    splits_model = need.shares or need.heads is not None or spec.parallel.world is not None
    return replace(layout, tp=share.tp, pp=share.pp, dp=share.dp) if splits_model else layout


def input_hash(spec: DeploymentSpec, engine: AnalysingEngine) -> str:
    """SHA-256 of what the analysis reads and the need is made of: deployments of equal hashes have equal needs."""
    work, resources = engine.analysis(spec), spec.resources
    inputs = {
        "engine": engine.name,
        "model": spec.model,
        "args": spec.args,
        "target": None if work is None else work.target,
        "payload": None if work is None else dict(work.payload),
        "parallel": spec.parallel.model_dump(),
        "gpus": [resources.gpus, resources.gpu_memory, resources.max_workers, len(spec.placement.gpus)],
        "host_memory": resources.host_memory,
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
