"""The splits of a model over GPUs that are worth trying, best first.

The scheduler places by these splits. Engines measure them, and also the splits that advice considers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from controller.domain.placement import Need
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.resources import Parallel, Placement
from schemas.placement_reasons import Reason

MORE_WORKERS: Final = (2, 4)  # numbers of workers that advice considers for an instance that fits nowhere
_EVERY_GANG_UP_TO: Final = 8  # larger gangs are tried in powers of two, and at the bound itself


@dataclass(frozen=True, slots=True)
class Split:
    """tp x pp x dp GPUs on a number of workers."""

    tp: int
    pp: int
    dp: int
    workers: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def degrees(self) -> tuple[int, int, int]:
        """The part on which an engine's memory depends; the number of workers does not matter."""
        return self.tp, self.pp, self.dp


def splits(spec: DeploymentSpec, counts: Sequence[int]) -> tuple[Split, ...]:
    """The splits to try: fewer workers first, then fewer GPUs.

    Workers give equal numbers of GPUs, unless an instance takes all GPUs that the user names. Stated degrees are kept.
    Otherwise tensor parallelism stays within a worker, where GPUs are closest to each other, and the pipeline runs
    across workers.

    `counts`: numbers of GPUs of one worker to try if the spec states none, best first; (0,): no GPUs.
    """
    parallel, named = spec.parallel, len(spec.placement.gpus) if spec.takes_all_named_gpus else 0
    if parallel.world is not None:
        tp, pp, dp = (1 if degree == "auto" else degree for degree in (parallel.tp, parallel.pp, parallel.dp))
        gangs = _gangs(spec, parallel.world)
        # Each data-parallel copy stays on one worker: servers use more workers only to run more copies.
        return tuple(Split(tp, pp, dp, n) for n in gangs if dp == 1 or dp % n == 0)
    total = spec.gpus_stated if spec.gpus_stated is not None else named or None
    if total == 0 or (total is None and not any(counts)):
        return ()
    if total is not None:
        return tuple(_of_total(total, n) for n in _gangs(spec, total))
    return tuple(
        Split(count, n, 1, n)
        for n in _gang_sizes(spec)
        for count in counts
        if n == 1 or count.bit_count() == 1  # over several workers other counts are not worth trying
    )


def splits_to_measure(spec: DeploymentSpec, counts: Sequence[int]) -> tuple[Split, ...]:
    """One split per degrees: those to try, then those that might fit with other fields of the spec.

    Advice about other degrees or more workers needs the engine's measure of each GPU's memory in them.
    """
    variants = [spec, spec.model_copy(update={"parallel": Parallel()})]
    for workers in MORE_WORKERS:
        if workers > spec.resources.max_workers:
            resources = spec.resources.model_copy(update={"max_workers": workers})
            variants.append(spec.model_copy(update={"resources": resources}))
    if spec.placement.all_of:
        variants.append(spec.model_copy(update={"placement": Placement()}))
    return tuple({split.degrees: split for variant in variants for split in splits(variant, counts)}.values())


def _of_total(total: int, workers: int) -> Split:
    even = total % workers == 0
    return Split(total // workers, workers, 1, workers) if even else Split(1, total, 1, workers)


def _gangs(spec: DeploymentSpec, total: int) -> Iterator[int]:
    """The numbers of workers that a stated number of GPUs may be spread over."""
    most, uneven = min(spec.resources.max_workers, total), spec.takes_all_named_gpus
    least = spec.resources.max_workers if _takes_all_workers(spec) else 1
    return (n for n in range(least, most + 1) if uneven or total % n == 0)


def _takes_all_workers(spec: DeploymentSpec) -> bool:
    return spec.placement.all_of and bool(spec.placement.workers)


def _gang_sizes(spec: DeploymentSpec) -> Iterator[int]:
    max_workers = spec.resources.max_workers
    if _takes_all_workers(spec):
        yield max_workers
        return
    yield from range(1, min(max_workers, _EVERY_GANG_UP_TO) + 1)
    size = 2 * _EVERY_GANG_UP_TO
    while size < max_workers:
        yield size
        size *= 2
    if max_workers > _EVERY_GANG_UP_TO:
        yield max_workers


def indivisible(need: Need, tp: int) -> Reason | None:
    """The reason why tensor parallelism of this degree cannot split a model; None if it can, or that is unknown."""
    if tp <= 1:
        return None
    if need.heads is not None and need.heads % tp:
        return Reason.HEADS_INDIVISIBLE
    # Fewer key and value heads than GPUs are replicated, which must divide evenly too.
    if need.kv_heads is not None and need.kv_heads % tp and tp % need.kv_heads:
        return Reason.HEADS_INDIVISIBLE
    if need.vocab is not None and need.vocab % tp:
        return Reason.VOCAB_INDIVISIBLE
    if need.vision_heads is not None and need.vision_heads % tp:
        return Reason.VISION_INDIVISIBLE
    return None
