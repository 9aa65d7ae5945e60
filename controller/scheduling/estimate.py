"""Turns a spec and its need into an ask: the layouts by GPUs, memory and workers, and the layouts ruled out."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from controller.domain.placement import Ask, Compatibility, Layout, Need, Share
from controller.domain.splits import Split, indivisible, splits
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.resources import capability_bounds
from schemas.placement_reasons import Reason

_CPU_MILLI: Final = 1000


class _Work(Protocol):
    """An engine's analysis, as far as the input hash reads it."""

    @property
    def hashed_as(self) -> str: ...
    @property
    def payload(self) -> Mapping[str, Any]: ...


class EstimatedEngine(Protocol):
    """An engine as far as the estimate needs it."""

    name: str
    splits_models: bool  # the degrees are on its command line

    def validate(self, spec: DeploymentSpec) -> None:
        """Raises ValueError for a spec that it does not accept."""

    def compatibility(self, spec: DeploymentSpec) -> Compatibility: ...

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """The GPU counts to try on each worker where the spec leaves them open."""

    def chosen(self, name: str) -> "EstimatedEngine":
        """The engine of that name among those that it represents. An empty name means its default."""


class AnalysingEngine(Protocol):
    """An engine as `input_hash` sees it."""

    name: str

    def analysis(self, spec: DeploymentSpec) -> _Work | None: ...


def asks_for(
    spec: DeploymentSpec,
    need: Need,
    engine: EstimatedEngine,
    *,
    instance: str,
    deployment_uid: str,
    avoid_workers: frozenset[str] = frozenset(),
) -> Ask:
    """The ask of one instance of this spec, by its best engine; `otherwise` holds the ask by the next engine.

    Args:
        spec: the revision's spec, validated.
        need: the engine's need, from the analysis.
        engine: the result of `engine_for(spec)`.
        instance: its id.
        deployment_uid: of its deployment.
        avoid_workers: ids of workers to use only where nothing else fits.
    """
    names = need.by_engine or (("", need),)
    blank = Ask(instance=instance, deployment_uid=deployment_uid, layouts=(), avoid_workers=avoid_workers)
    ask, *others = (_ask(spec, one, engine.chosen(name), blank) for name, one in reversed(names))
    for better in others:
        ask = replace(better, otherwise=ask)
    return ask


def _ask(spec: DeploymentSpec, need: Need, engine: EstimatedEngine, blank: Ask) -> Ask:
    layouts, tried = _layouts(spec, need, engine)
    resources, compatibility = spec.resources, engine.compatibility(spec)
    if spec.runtime == "docker":
        compatibility = compatibility.in_container()
    # The capability that the model's types need is an estimate, which a stated capability overrides.
    guessed = need.compute_capability if resources.compute_capability == "none" else None
    capabilities = [c for c in (compatibility.min_compute_capability, guessed) if c is not None]
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
        all_workers=spec.placement.all_of,
        all_gpus=spec.takes_all_named_gpus,
        gpu_models=resources.gpu_models,
        min_gpu_mib=0 if resources.min_gpu_memory == "none" else resources.min_gpu_memory,
        capability_bounds=capability_bounds(resources.compute_capability),
        compatibility=replace(compatibility, min_compute_capability=max(capabilities, default=None)),
        engine=engine.name,
    )


def _layouts(
    spec: DeploymentSpec, need: Need, engine: EstimatedEngine
) -> tuple[tuple[Layout, ...], tuple[tuple[Layout, Reason], ...]]:
    """The layouts to try, and those that heads or vocabulary rule out, with their reasons."""
    possible = splits(spec, engine.gpu_counts(spec))
    if need.refused:
        return (), ()
    if not possible:
        return (Layout(gpus=0, memory_mib=0, exclusive=False),), ()
    stated, known = isinstance(spec.resources.gpu_memory, int), any(share.least_mib for share in need.shares)
    if (stated and not known) or not (need.shares or need.memory_mib is not None):
        # More GPUs help only where they share a known need: not where it is only stated, or unknown.
        possible = tuple(split for split in possible if split.gpus == possible[0].gpus)
    layouts: list[Layout] = []
    tried: list[tuple[Layout, Reason]] = []
    for split, share in _shares(spec, need, possible):
        layout = _layout(spec, need, split, share, splits_models=engine.splits_models)
        reason = indivisible(need, share.tp)
        if reason is None and stated and share.memory_mib != spec.resources.gpu_memory:
            reason = Reason.NEED_GT_STATED
        if reason is None:
            layouts.append(layout)
        else:
            tried.append((layout, reason))
    return tuple(layouts), tuple(tried)


def _shares(spec: DeploymentSpec, need: Need, possible: Sequence[Split]) -> Iterator[tuple[Split, Share]]:
    """Each split with its share of the need.

    An engine may measure one split several times, for different numbers of concurrent requests. Then all splits are
    tried for the most requests before any is tried for fewer.
    """
    given = spec.resources.gpu_memory
    if isinstance(given, int) and any(share.least_mib for share in need.shares):
        yield from _stated_shares(need, possible, given)
        return
    if isinstance(given, int) or not need.shares:
        for split in possible:
            # Each data parallel rank holds its own copy.
            even = 0 if need.memory_mib is None else -(-need.memory_mib // (split.tp * split.pp))
            yield split, Share(*split.degrees, given if isinstance(given, int) else even)
        return
    measured: defaultdict[tuple[int, int, int], list[Share]] = defaultdict(list)
    for share in need.shares:
        measured[share.tp, share.pp, share.dp].append(share)
    for turn in range(max(map(len, measured.values()))):
        for split in possible:
            # An engine that spreads complete layers has measured a pipeline of as many GPUs.
            of_split = measured.get(split.degrees) or measured.get((1, split.gpus, 1), [])
            if turn < len(of_split):
                yield split, of_split[turn]


def _stated_shares(need: Need, possible: Sequence[Split], given_mib: int) -> Iterator[tuple[Split, Share]]:
    """Each split with the stated memory, or with the least that it needs where that is more."""
    for split in possible:
        same = [share for share in need.shares if (share.tp, share.pp, share.dp) == split.degrees]
        same = same or [share for share in need.shares if (share.tp, share.pp, share.dp) == (1, split.gpus, 1)]
        if same:
            least = min(same, key=lambda share: share.least_mib)
            yield split, replace(least, memory_mib=max(given_mib, least.least_mib))


def _layout(spec: DeploymentSpec, need: Need, split: Split, share: Share, *, splits_models: bool) -> Layout:
    exclusive = spec.resources.exclusive or spec.resources.gpu_memory == "all"
    # A need that is neither known nor stated takes the whole GPU.
    exclusive = exclusive or not (share.memory_mib or need.shares or need.memory_mib is not None)
    layout = Layout(split.gpus, share.memory_mib, exclusive, split.workers)
    splits_model = splits_models or need.shares or need.heads is not None or spec.parallel.world is not None
    return replace(layout, tp=share.tp, pp=share.pp, dp=share.dp) if splits_model else layout


def input_hash(spec: DeploymentSpec, engine: AnalysingEngine) -> str:
    """SHA-256 of all inputs of the analysis and the need. Equal hashes mean equal needs."""
    work, resources = engine.analysis(spec), spec.resources
    named = len(spec.placement.gpus) if spec.takes_all_named_gpus else 0
    inputs = {
        "engine": engine.name,
        "model": spec.model,
        "args": spec.args,
        "target": None if work is None else work.hashed_as,
        "payload": None if work is None else dict(work.payload),
        "parallel": spec.parallel.model_dump(),
        "gpus": [resources.gpus, resources.gpu_memory, resources.max_workers, named],
        "host_memory": resources.host_memory,
    }
    if spec.image is not None:
        inputs["image"] = spec.image  # the version of the engine in it decides what it serves
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
