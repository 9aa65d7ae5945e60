"""Whether the numbers of stated and named GPUs and workers agree, whatever the engine."""

from schemas.manifest.deployment import DeploymentSpec


def count_problem(spec: DeploymentSpec) -> str | None:
    """What is wrong with the counts of one spec: the field, and what to write instead. None: nothing."""
    resources, stated, named = spec.resources, spec.gpus_stated, len(spec.placement.gpus)
    if resources.gpus == 0 and (resources.gpu_memory != "auto" or resources.exclusive):
        return "resources.gpus: is 0, but gpu_memory or exclusive asks for a GPU; remove one of them"
    if named and stated is not None and (stated > named or not stated):
        return (
            f"placement.gpus: names {named} GPUs, the spec needs {stated}: count_mismatch; name as many, or remove it"
        )
    return _all_of_problem(spec) if spec.placement.all_of else None


def _all_of_problem(spec: DeploymentSpec) -> str | None:
    placement, stated, named = spec.placement, spec.gpus_stated, len(spec.placement.gpus)
    workers, most = len(set(placement.workers)), spec.resources.max_workers
    if not named and not workers:
        return "placement.all_of: is true, but workers and gpus name nothing; name some, or remove it"
    if named and stated not in (None, named):
        return (
            f"placement.all_of: takes all {named} named GPUs, the spec needs {stated}: count_mismatch; "
            "make the numbers equal, or remove all_of"
        )
    if workers and workers != most:
        return (
            f"resources.max_workers: must be {workers} since placement.all_of takes all named workers, got {most}; "
            f"write {workers}, or remove all_of"
        )
    dp = spec.parallel.dp
    if workers and dp != "auto" and dp > 1 and dp % workers:
        return (
            f"parallel.dp: {dp} copies cannot be divided evenly among the {workers} workers that placement.all_of "
            "takes: count_mismatch; write a multiple, or remove all_of"
        )
    if workers and not named and stated is not None and stated % workers:
        return (
            f"resources.gpus: {stated} GPUs cannot be divided evenly among the {workers} workers that "
            "placement.all_of takes: count_mismatch; write a multiple, or name the GPUs"
        )
    return None
