"""The effects of manifests: the change and need of each, read from the rows or analysed here."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from controller.api.dry_run.allowances import Analyse, DryRunCaller
from controller.api.errors import invalid
from controller.domain.placement import Ask, Need
from controller.domain.spec_changes import change_between, field_changes
from controller.domain.wanted import requested_replicas
from controller.engines.arguments.privileges import ungranted
from controller.engines.registry import engine_for
from controller.leader.analyses import assumed_need
from controller.runtime.child import ChildError, ChildFailure
from controller.scheduling.estimate import asks_for, input_hash
from controller.store.core.database import Database
from controller.store.deployments.apply import refuse_change
from controller.store.deployments.revisions import revision_under_way
from controller.store.placement.plan_reads import known_needs, placed_counts
from controller.store.views.deployments import live_by_name
from schemas.api.deployments import DeploymentView
from schemas.api.plan import FieldChange
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.problems import FieldProblem

PlanChange = Literal["create", "replace", "update", "unchanged"]
ANALYSES_LIMIT_S: Final = 25.0  # for all analyses of one plan
_ANALYSIS_LIMIT_S: Final = 15.0  # for one analysis, so that a hanging one leaves time for the next
_NOT_READ: Final = "no model is read for a key of the role viewer; plan it with a key of the role operator"
_CHANGES: Final[dict[str, PlanChange]] = {"unchanged": "unchanged", "updated": "update", "replaced": "replace"}


@dataclass(frozen=True, slots=True)
class ManifestEffect:
    """The effect of one manifest: the change of its deployment, and the number of instances to place."""

    name: str
    uid: str
    spec: DeploymentSpec
    change: PlanChange
    to_place: int
    need: Need | str  # a text: the reason why the need is unknown
    back_to: int | None = None  # an older revision that the apply restores
    fields: tuple[FieldChange, ...] = ()  # that differ from the present spec
    replaces: int = 0  # placed instances
    generation: int | None = None  # the present deployment's; None: it does not exist

    def ask(self, known: Need | None = None) -> Ask | None:
        """The request of one instance for capacity, by its need or else the known one; None while that is unknown."""
        need = known if isinstance(self.need, str) else self.need
        if need is None:
            return None
        return asks_for(self.spec, need, engine_for(self.spec), instance="", deployment_uid=self.uid)


def instance_name(effect: ManifestEffect, index: int) -> str:
    return f"{effect.name}#{index}"


Successors = Mapping[str, Ask]  # the ask of each deployment whose instances may be preempted, by uid


async def effects_of(
    database: Database, specs: Mapping[str, DeploymentSpec], caller: DryRunCaller, *, every_need: bool = False
) -> list[ManifestEffect]:
    """The effect of each spec, by deployment, with its need.

    Unknown needs are analysed if the caller may request that. The need of a spec without an instance to place is only
    read with `every_need`.

    Raises:
        ApiError: 400 for too many instances in all.
        NotGrantedError: the caller may not apply one of them.
    """
    hashes = {name: input_hash(spec, engine_for(spec)) for name, spec in specs.items()}
    async with database.snapshot() as connection:
        live = await live_by_name(connection, specs)
        for name, spec in specs.items():
            refuse_change(name, live[name].spec if name in live else None, spec, ungranted(caller.granted, spec))
        placed = await placed_counts(connection, [view.uid for view in live.values()])
        needs = await known_needs(connection, hashes.values())
        changes = {name: _change(live.get(name), spec) for name, spec in specs.items()}
        back = {
            name: await revision_under_way(connection, live[name].uid, live[name].status.revision, specs[name])
            for name, change in changes.items()
            if change == "replace"
        }
    effects: list[ManifestEffect] = []
    deadline_s = asyncio.get_running_loop().time() + ANALYSES_LIMIT_S
    for name, spec in specs.items():
        view, change, back_to = live.get(name), changes[name], back.get(name)
        present = placed.get(view.uid, Counter()) if view else Counter()
        to_place = _to_place(view, spec, change, present, back_to)
        need: Need | str = ""
        if to_place or every_need:
            need = await _need(caller.analyse, spec, needs.get(hashes[name]), deadline_s)
            if isinstance(need, Need):
                needs[hashes[name]] = need
        uid = view.uid if view else f"new {name}"
        fields = tuple(field_changes(view.spec, spec)) if view else ()
        staying = 0 if back_to is None else present[back_to]
        replaces = present.total() - staying if change == "replace" else 0
        generation = view.generation if view else None
        effects.append(ManifestEffect(name, uid, spec, change, to_place, need, back_to, fields, replaces, generation))
    total = sum(effect.to_place for effect in effects)
    if total > caller.instances:
        fix = f"must be at most {caller.instances} instances in one plan, got {total}"
        raise invalid([FieldProblem("replicas", fix)])
    return effects


def _change(view: DeploymentView | None, spec: DeploymentSpec) -> PlanChange:
    return "create" if view is None else _CHANGES[change_between(view.spec, spec)]


def _to_place(
    view: DeploymentView | None, spec: DeploymentSpec, change: PlanChange, placed: Counter[int], back_to: int | None
) -> int:
    """Number of instances to place. `placed`: number of placed instances by revision."""
    requested = requested_replicas(spec, view.status.intents if view else ())
    if view is None:
        return requested
    if change == "replace":
        return max(0, requested - placed[back_to]) if back_to is not None else requested
    return max(0, (view.status.wanted if change == "unchanged" else requested) - placed.total())


async def _need(analyse: Analyse | None, spec: DeploymentSpec, known: Need | None, deadline_s: float) -> Need | str:
    """The need, or the reason why it is unknown. `deadline_s`: when all analyses of the plan must end."""
    engine = engine_for(spec)
    if engine.analysis(spec) is None:
        return engine.need(spec, None)
    if known is not None:
        return known
    if analyse is None:
        return assumed_need(spec, _NOT_READ) or _NOT_READ
    try:
        async with asyncio.timeout_at(min(deadline_s, asyncio.get_running_loop().time() + _ANALYSIS_LIMIT_S)):
            return await analyse(spec)
    except TimeoutError:
        why = "reading the model takes longer than a plan may wait; an apply continues reading"
    except ChildFailure as error:
        why = error.message if isinstance(error, ChildError) else str(error)
    return assumed_need(spec, why) or why
