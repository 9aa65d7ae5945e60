"""Instances whose GPU is gone although its worker answers: lost by its driver, off the bus, or no longer there.

That is evidence, unlike a GPU that cannot be read: on such a one everything goes on.
"""

from controller.decide.instances.liveness import is_silent
from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import InstancePhase

P = InstancePhase
GPU_LOST = "gpu_lost"
# A running instance is shown as unhealthy first; in `backoff` it is placed again when its delay is over.
_LEAVES = frozenset({P.SCHEDULED, P.STARTING, P.UNHEALTHY})


def lost_gpu(facts: DeploymentFacts, instance: InstanceFacts) -> str | None:
    """Which GPU of the instance is gone, and why; None: none is, or nothing is known of its worker."""
    claim = next((c for c in instance.claims if c.gone), None)
    if claim is None or is_silent(facts, instance):
        return None
    return f"its GPU {claim.device} is gone: {claim.gone}"


def leaves_lost_gpu(facts: DeploymentFacts, instance: InstanceFacts) -> str | None:
    """As `lost_gpu`, but only where the instance must stop now and its spec allows another one elsewhere.

    A task that must never run twice stays. So does an instance for which too few of the GPUs that it names are left.
    """
    why = lost_gpu(facts, instance)
    spec = facts.revisions[instance.revision].spec
    if why is None or instance.phase not in _LEAVES or spec.restart == "never":
        return None
    held = [c for c in instance.claims if c.kind == "gpu"]
    left = set(spec.placement.gpus) - {c.device for c in held if c.gone}
    return None if spec.placement.gpus and len(left) < len(held) else why
