"""Asks as manifests make them, and a search on a fleet for one of them."""

from typing import Any

from controller.domain.placement import Ask, Compatibility, Decision, Need, Placed, Unplaced
from controller.engines.registry import engine_for
from controller.scheduling.estimate import asks_for
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import place
from schemas.manifest.deployment import DeploymentSpec
from support.builders.fleet import Fleet, gpus_of

B = 2**20
W24A = 26015170560 // B
W16 = 17171480576 // B
A80 = 85899345920 // B
NEED = {  # bytes, rounded up to MiB as an engine does
    name: -(-size // B)
    for name, size in {
        "q06b": 3951444041, "q8b": 21805248512, "q32b": 80776579481, "bge": 1062417526, "s14g": 20186346291,
        "s20g": 27917287424, "s22": 30494267801, "s40h28": 53687091200,
    }.items()
}  # fmt: skip
VLLM_LIKE = Compatibility(
    os=frozenset({"linux"}), arch=frozenset({"x86_64", "aarch64"}), min_driver=(525,), min_compute_capability=(7, 0)
)


def spec(resources: dict[str, Any] | None = None, **fields: Any) -> DeploymentSpec:
    """A deployment of the simulated engine."""
    return DeploymentSpec.model_validate(
        {"engine": "simulated", "args": {"memory": "1GiB"}, "resources": resources or {}, **fields}
    )


def ask(model: str | Need, resources: dict[str, Any] | None = None, **fields: Any) -> Ask:
    """The ask of a model, by name or need, with these resources and fields."""
    need = model if isinstance(model, Need) else Need(NEED[model])
    wanted = spec(resources, **fields)
    return asks_for(wanted, need, engine_for(wanted), instance="i", deployment_uid="d")


def one(fleet: Fleet | Inventory, wanted: Ask) -> Decision:
    """The decision on one ask."""
    inventory = fleet.inventory() if isinstance(fleet, Fleet) else fleet
    return place(inventory, [wanted])[0]


def placed(fleet: Fleet | Inventory, wanted: Ask) -> list[str]:
    """The GPUs that it gets."""
    decision = one(fleet, wanted)
    assert isinstance(decision, Placed), decision
    return gpus_of(decision)


def refused(fleet: Fleet | Inventory, wanted: Ask) -> dict[str, int]:
    """The reasons, counted, for which it fits nowhere."""
    decision = one(fleet, wanted)
    assert isinstance(decision, Unplaced), decision
    return decision.explain.rejected
