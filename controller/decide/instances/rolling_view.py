"""A rollout under `update: rolling` as it is now: which instances run, start, wait for a place or hold one."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from controller.decide.instances.classify import Buckets, may_be_substituted
from controller.decide.instances.create import stopping_outdated
from controller.decide.instances.unplaced import finds_no_place, is_looked_for, left_s
from controller.decide.rollouts.judge import RolloutView
from controller.domain.effects import DeploymentEffects
from controller.domain.instances import DeploymentFacts, InstanceFacts
from controller.domain.phases import HOLDS_CLAIMS, InstancePhase
from controller.domain.rollouts import RolloutFacts

P = InstancePhase
PENDING: Final = frozenset({P.PENDING, P.ANALYZING})


def rollout_view(facts: DeploymentFacts, buckets: Buckets, wanted: int) -> RolloutView:
    """The deployment's rollout at this moment."""
    settings = facts.spec.rollout
    revision = facts.revisions[facts.revision]
    new = [i for i in buckets.replicas if i.revision == facts.revision]
    others = [i for i in buckets.replicas if i.revision != facts.revision]
    available = sum(is_available(facts, i, settings.ready_for) for i in new)
    error = revision.need_error if revision.need is None else None
    unready = [i for i in new if i.phase is not P.RUNNING and (i.phase not in PENDING or i.failures or error)]
    flapping = [i for i in new if i.phase is P.RUNNING and i.failures]
    failing = next((i for i in unready if i.failures or error), None)
    dead = next((i for i in new if i.phase is P.FAILED), None)
    hopeless = error.message if error is not None and not error.retryable else ""
    running = Counter(i.revision for i in others if i.phase is P.RUNNING)
    stopping = sum(_outdated_and_here(facts, i) for i in buckets.stopping)
    # A place that an eviction or a lost worker takes is missing, and not one by which the deployment would have grown.
    placed = [*buckets.replicas, *buckets.given_up, *(eviction.instance for eviction in buckets.evicted)]
    return RolloutView(
        revision=facts.revision,
        settings=settings,
        start_timeout_s=revision.spec.start_timeout,
        wanted=wanted,
        now=facts.now,
        facts=facts.rollout or RolloutFacts(),
        serving=running.most_common(1)[0][0] if running else None,
        updated=len(new),
        available=available,
        trying=len(unready) + sum(not is_available(facts, i, settings.ready_for) for i in flapping),
        failing=failing is not None or bool(flapping),
        trouble=(failing.message or failing.reason) if failing is not None else "",
        hopeless=hopeless or (dead.message or dead.reason or "it failed" if dead is not None else ""),
        coming=sum(_has_place(i) for i in new) - available,
        unplaced=_without_place(facts, new),
        others_unplaced=_without_place(facts, others),
        outdated=len(others) + stopping,
        outdated_ready=sum(i.phase is P.RUNNING for i in others),
        stopping=stopping,
        holding=sum(map(_has_place, placed)) + stopping_outdated(facts, buckets, DeploymentEffects()),
        holders=tuple(sorted((i.revision, i.id) for i in others if _has_place(i))),
    )


def is_available(facts: DeploymentFacts, instance: InstanceFacts, ready_for_s: float) -> bool:
    """Whether it has run for long enough."""
    return instance.phase is P.RUNNING and left_s(facts, instance, ready_for_s) <= 0


def _has_place(instance: InstanceFacts) -> bool:
    return instance.phase in HOLDS_CLAIMS


def _without_place(facts: DeploymentFacts, some: Sequence[InstanceFacts]) -> int:
    """How many of these find no place; 0 while one is looked for, which may be the one that has become free."""
    looking = any(is_looked_for(facts, i) for i in some)
    return 0 if looking else sum(finds_no_place(facts, i) for i in some)


def _outdated_and_here(facts: DeploymentFacts, instance: InstanceFacts) -> bool:
    """Whether it is of another revision, and its worker is not lost: a rollout does not wait for that one's return."""
    return instance.revision != facts.revision and not may_be_substituted(facts, instance)
