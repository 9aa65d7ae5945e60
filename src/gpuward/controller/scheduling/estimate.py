"""From a spec and its need to an ask: how many GPUs, how much of each, and which splits are ruled out."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from gpuward.controller.domain.placement import Ask, Compatibility, Layout, Need
from gpuward.schemas.manifest import DeploymentSpec
from gpuward.schemas.reasons import Reason

_CPU_MILLI: Final = 1000


class _Work(Protocol):
    """What an engine's analysis is made of."""

    @property
    def target(self) -> str: ...
    @property
    def payload(self) -> Mapping[str, Any]: ...


class EngineFacts(Protocol):
    """What the estimate has to know of an engine; every engine is one."""

    def compatibility(self, spec: DeploymentSpec) -> Compatibility:
        """What it runs on."""

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """The counts to try where the user leaves them to us."""


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
    """What one instance of this spec asks of the scheduler.

    Args:
        spec: the revision's spec, validated.
        need: what the engine made of the analysis.
        engine: as `engine_for(spec)` says.
        instance: its id.
        deployment_uid: of its deployment.
        avoid_workers: ids of workers to be taken only where nothing else fits.
    """
    layouts, refused = _layouts(spec, need, engine)
    resources = spec.resources
    return Ask(
        instance=instance,
        deployment_uid=deployment_uid,
        layouts=layouts,
        refused=refused,
        host_memory_mib=need.host_memory_mib if resources.host_memory == "auto" else resources.host_memory,
        cpu_milli=0 if resources.cpus == "auto" else round(resources.cpus * _CPU_MILLI),
        strategy=spec.placement.strategy,
        labels=spec.placement.labels,
        workers=spec.placement.workers,
        gpus=spec.placement.gpus,
        compatibility=engine.compatibility(spec),
        avoid_workers=avoid_workers,
    )


def _layouts(spec: DeploymentSpec, need: Need, engine: EngineFacts) -> tuple[tuple[Layout, ...], tuple[Reason, ...]]:
    """The layouts to try, and the reasons for which others were left out."""
    layouts: list[Layout] = []
    refused: list[Reason] = []
    for count in _counts(spec, need, engine):
        reason = _indivisible(need, count)
        if reason is None:
            layouts.append(_layout(spec, need, count))
        elif reason not in refused:
            refused.append(reason)
    return tuple(layouts), tuple(refused)


def _counts(spec: DeploymentSpec, need: Need, engine: EngineFacts) -> tuple[int, ...]:
    resources = spec.resources
    if resources.gpus != "auto":
        return (resources.gpus,)
    if spec.placement.gpus:
        return (len(spec.placement.gpus),)
    counts = engine.gpu_counts(spec)
    # More GPUs help only where the need is known to be shared out: not where it is stated per GPU or not known at all.
    per_gpu = resources.gpu_memory not in ("auto", "all")
    return counts[:1] if per_gpu or need.memory_mib is None else counts


def _indivisible(need: Need, count: int) -> Reason | None:
    """Why a model cannot be split by tensor parallelism over `count` GPUs. A need without heads is not so split."""
    if count <= 1:
        return None
    if need.heads is not None and need.heads % count:
        return Reason.HEADS_INDIVISIBLE
    if need.vocab is not None and need.vocab % count:
        return Reason.VOCAB_INDIVISIBLE
    return None


def _layout(spec: DeploymentSpec, need: Need, count: int) -> Layout:
    resources = spec.resources
    if count == 0:
        return Layout(gpus=0, memory_mib=0, exclusive=False)
    if isinstance(resources.gpu_memory, int):
        return Layout(count, resources.gpu_memory, resources.exclusive)
    if need.memory_mib is None:  # whole GPUs, since nobody can know how much of one would do
        return Layout(count, 0, exclusive=True)
    share_mib = -(-need.memory_mib // count)
    return Layout(count, share_mib, resources.exclusive or resources.gpu_memory == "all")


def input_hash(spec: DeploymentSpec, engine: AnalysingEngine) -> str:
    """SHA-256 of exactly what the analysis reads and the need is made of; equal inputs are read once."""
    work = engine.analysis(spec)
    inputs = {
        "engine": engine.name,
        "model": spec.model,
        "args": spec.args,
        "target": None if work is None else work.target,
        "payload": None if work is None else dict(work.payload),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
