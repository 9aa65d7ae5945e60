"""Bounds between two moments: nothing is created beyond them, and no rollout stops what must stay available.

Faults come on top of the bounds: what crashed, left with its host or was drained meanwhile counts for neither side.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from controller.domain.wanted import wanted_replicas
from schemas.manifest.deployment import DeploymentSpec

READ: Final = """
    select d.uid::text as uid, d.name, d.spec,
           (select o.kept from rollouts o where o.deployment_uid = d.uid) as kept,
           array(select (t.source, t.min_replicas, t.max_replicas) from intents t
                  where t.deployment_uid = d.uid) as caps,
           array(select (i.id, i.phase, i.stop_reason, i.replaces) from instances i
                  where i.deployment_uid = d.uid) as has,
           array(select m.copy_id from relocations m join instances i on i.id = m.copy_id
                  where i.deployment_uid = d.uid and m.state = 'moving') as copies
      from deployments d where d.deleted_at is null"""
_ROLLED: Final = "new_revision"
_UNCOUNTED: Final = frozenset({"unreachable", "replaced", "stopping", "succeeded", "failed"})


@dataclass(frozen=True)
class Moment:
    """One deployment at one moment. `phases` and `reasons` of a stop are by instance."""

    wanted: int
    spec: DeploymentSpec
    phases: Mapping[str, str]
    reasons: Mapping[str, str | None]
    fresh: frozenset[str]  # instances that take no other one's place
    kept: int | None = None  # replicas that a rollout keeps up: not those by which it has grown without use

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> "Moment":
        spec = DeploymentSpec.model_validate(row["spec"])
        intents = [SimpleNamespace(source=s, min_replicas=low, max_replicas=high) for s, low, high in row["caps"]]
        copies = set(row["copies"])
        has = [one for one in row["has"] if one[0] not in copies]
        return cls(
            wanted=wanted_replicas(spec, intents),
            spec=spec,
            phases={id_: phase for id_, phase, _, _ in has},
            reasons={id_: reason for id_, _, reason, _ in has},
            fresh=frozenset(id_ for id_, _, _, replaces in has if replaces is None),
            kept=row["kept"],
        )

    @property
    def rolls(self) -> bool:
        return self.spec.update == "rolling"

    @property
    def most(self) -> int:
        """Of instances."""
        return self.wanted + (self.spec.rollout.surge if self.rolls else 0)

    @property
    def least(self) -> int:
        """Of those that run."""
        return min(self.wanted, self.kept or self.wanted) - self.spec.rollout.unavailable

    def running(self) -> set[str]:
        return {id_ for id_, phase in self.phases.items() if phase == "running"}

    def rolled(self) -> set[str]:
        """What a rollout stops."""
        return {id_ for id_, phase in self.phases.items() if phase == "stopping" and self.reasons[id_] == _ROLLED}


def check_bounds(before: Moment, now: Moment) -> None:
    """Checks what was created and what a rollout has begun to stop between two moments of one deployment."""
    created = (now.phases.keys() - before.phases.keys()) & now.fresh
    counted = {id_ for id_, phase in now.phases.items() if phase not in _UNCOUNTED} | now.rolled()
    counted -= {id_ for id_ in counted if before.phases.get(id_) in _UNCOUNTED}
    most = max(before.most, now.most)
    assert not created or len(counted) <= most, f"created beyond {most}: {sorted(created)}, {now}"
    stopped = before.running() & now.rolled()
    if stopped and before.rolls and now.rolls:
        elsewhere = before.running() - now.running() - stopped
        left = len(now.running()) + len(elsewhere)
        least = min(before.least, now.least)
        assert left >= least, f"{left} of {least} are left, and these stop: {sorted(stopped)}, {before}, {now}"
