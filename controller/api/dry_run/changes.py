"""The effect of one manifest on its deployment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from controller.domain.placement import Ask, Need
from controller.engines.registry import engine_for
from controller.scheduling.estimate import asks_for
from schemas.api.plan import FieldChange
from schemas.manifest.deployment import DeploymentSpec

PlanChange = Literal["create", "replace", "update", "unchanged"]


@dataclass(frozen=True, slots=True)
class ManifestEffect:
    """The effect of one manifest: the change of its deployment, and how many instances have to be placed."""

    name: str
    uid: str
    spec: DeploymentSpec
    change: PlanChange
    to_place: int
    need: Need | str  # a text: why the need is unknown
    back_to: int | None = None  # an older revision that the apply takes up again
    fields: tuple[FieldChange, ...] = ()  # that differ from the present spec
    replaces: int = 0  # placed instances
    generation: int | None = None  # of the deployment as it is; None: it does not exist

    def ask(self, known: Need | None = None) -> Ask | None:
        """What one of its instances asks for, by its need or the one that is known. None while the need is unknown."""
        need = known if isinstance(self.need, str) else self.need
        if need is None:
            return None
        return asks_for(self.spec, need, engine_for(self.spec), instance="", deployment_uid=self.uid)


def instance_name(effect: ManifestEffect, index: int) -> str:
    """The name of a planned instance."""
    return f"{effect.name}#{index}"


Successors = Mapping[str, Ask]  # the ask of each deployment whose instances may be preempted, by uid
