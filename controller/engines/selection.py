"""Checks that the numbers of stated and named GPUs and workers agree, whatever the engine."""

from controller.engines.base import SpecError
from schemas.manifest.deployment import DeploymentSpec


def check_selection(spec: DeploymentSpec) -> None:
    """Checks the counts of one spec.

    Raises:
        SpecError: names the field and what to write instead.
    """
    resources, stated, named = spec.resources, spec.gpus_stated, len(spec.placement.gpus)
    if resources.gpus == 0 and (resources.gpu_memory != "auto" or resources.exclusive):
        raise SpecError("resources.gpus: is 0, but gpu_memory or exclusive asks for a GPU; remove one of them")
    if named and stated is not None and (stated > named or not stated):
        raise SpecError(
            f"placement.gpus: names {named} GPUs, the spec needs {stated}: count_mismatch; name as many, or remove it"
        )
    if spec.placement.all_of:
        _check_all_of(spec)


def _check_all_of(spec: DeploymentSpec) -> None:
    placement, stated, named = spec.placement, spec.gpus_stated, len(spec.placement.gpus)
    workers, most = len(set(placement.workers)), spec.resources.max_workers
    if not named and not workers:
        raise SpecError("placement.all_of: is true, but workers and gpus name nothing; name some, or remove it")
    if named and stated not in (None, named):
        raise SpecError(
            f"placement.all_of: takes all {named} named GPUs, the spec needs {stated}: count_mismatch; "
            "make the numbers equal, or remove all_of"
        )
    if workers and workers != most:
        raise SpecError(
            f"resources.max_workers: must be {workers} since placement.all_of takes all named workers, got {most}; "
            f"write {workers}, or remove all_of"
        )
    dp = spec.parallel.dp
    if workers and dp != "auto" and dp > 1 and dp % workers:
        raise SpecError(
            f"parallel.dp: {dp} copies cannot be divided evenly among the {workers} workers that placement.all_of "
            "takes: count_mismatch; write a multiple, or remove all_of"
        )
    if workers and not named and stated is not None and stated % workers:
        raise SpecError(
            f"resources.gpus: {stated} GPUs cannot be divided evenly among the {workers} workers that "
            "placement.all_of takes: count_mismatch; write a multiple, or name the GPUs"
        )
