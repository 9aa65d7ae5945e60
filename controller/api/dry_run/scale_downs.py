"""Instances that a file's changes in place end or change, chosen as the deployment's own step chooses them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from controller.api.dry_run.effects import ManifestEffect
from controller.decide.instances.classify import classify
from controller.decide.instances.scale import surplus
from controller.domain.holdings import Holder, Holders, Holdings
from controller.scheduling.inventory.capacity import Inventory
from controller.store.deployments.observe import observe
from schemas.manifest.deployment import DeploymentSpec


@dataclass(frozen=True, slots=True)
class InPlaceChanges:
    """The instances that stop, and the new spec of each instance that stays."""

    stopping: frozenset[str] = frozenset()
    specs: Mapping[str, DeploymentSpec] = field(default_factory=dict)


async def read_in_place_changes(connection: Any, effects: Sequence[ManifestEffect]) -> InPlaceChanges:
    """What the changes in place among these effects do to running instances. In one REPEATABLE READ transaction."""
    updated = {effect.uid: effect.spec for effect in effects if effect.change == "update"}
    stopping: set[str] = set()
    specs: dict[str, DeploymentSpec] = {}
    for uid, facts in (await observe(connection, list(updated))).items() if updated else ():
        # A changed spec removes the limits of stops and policies.
        changed = replace(facts, spec=updated[uid], intents=())
        buckets = classify(changed)
        evicted = {eviction.instance.id for eviction in buckets.evicted}
        stopping |= {one.id for one in surplus(changed, buckets, updated[uid].replicas, evicted)}
        specs |= {one.id: updated[uid] for one in facts.instances if one.id not in stopping}
    return InPlaceChanges(frozenset(stopping), specs)


def after(changes: InPlaceChanges, inventory: Inventory, holdings: Holdings, holders: Holders) -> Holders:
    """The holders after the changes; on the inventory, what the stopping instances hold is free."""
    for instance in sorted(changes.stopping):
        if (holding := holdings.get(instance)) is not None:
            inventory.exclude(holding.claims)
            inventory.remove_load([instance])

    def changed(some: Sequence[Holder]) -> tuple[Holder, ...]:
        return tuple(_changed(changes, one) for one in some if one.instance not in changes.stopping)

    return Holders(changed(holders.staying), changed(holders.leaving), changed(holders.relocating))


def _changed(changes: InPlaceChanges, holder: Holder) -> Holder:
    spec = changes.specs.get(holder.instance)
    return holder if spec is None else replace(holder, priority=spec.priority, movable=spec.movable)
