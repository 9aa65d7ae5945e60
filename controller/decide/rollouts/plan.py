"""How many instances of which revision a rollout wants at this moment. Pure."""

from dataclasses import dataclass

from controller.decide.rollouts.judge import RolloutView, canary_replicas, kept_up
from controller.domain.rollouts import RolloutRecord, RolloutState

S = RolloutState


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The aim of this moment, and its bounds.

    Attributes:
        target: the revision that takes the place of the others.
        fill: the revision of a replica that is missing.
        wanted: number of wanted replicas.
        most_new: most instances of the target.
        keep_old: fewest instances of other revisions that stay.
        surge: instances beyond the wanted ones.
        least: fewest instances that must serve for one that serves to be stopped.
        unplaced: instances of the target that need the places of others: neither any that ends nor one that starts will
            do.
        makes_room: instances of other revisions without a place let the target go first.
        ready_for_s: how long an instance of the target runs until it is available.
        keeps_unready: replicas of the target that do not run are tried again.
        why: told with each stop.
    """

    target: int
    fill: int
    wanted: int
    most_new: int
    keep_old: int
    surge: int
    least: int
    ready_for_s: float
    unplaced: int = 0
    makes_room: bool = False
    keeps_unready: bool = True
    why: str = "its spec was changed"


def plan_of(view: RolloutView, record: RolloutRecord, *, running: int, others: int) -> RolloutPlan:
    """The plan.

    `running`: replicas of the revision that run now, for however long. `others`: replicas of other revisions.
    """
    target = fill = record.revision
    most_new, keep_old, keeps_unready = view.wanted, 0, True
    why = "its spec was changed"
    settings, stable, unplaced, makes_room = view.settings, record.stable, view.unplaced, False
    if record.state is S.ABORTED and stable is not None:
        target = fill = stable
        unplaced = view.others_unplaced
        why = "its revision was aborted"
    elif record.state is S.FAILED and stable is not None:
        fill, keeps_unready = stable, False
        most_new, keep_old = running, max(view.wanted - running, 0)
        why = "its rollout has failed"
    elif view.facts.paused and record.state is not S.COMPLETE:
        keep_old = others
        most_new = max(view.updated, view.wanted - others)
        if record.fallback is not None:
            fill, most_new = record.fallback, view.updated
    elif record.state is S.CANARY and stable is not None:
        fill = stable
        most_new = canary_replicas(view, record)
        keep_old = min(view.wanted, view.wanted + settings.surge - most_new)
        if unplaced:  # without room beside them, old ones give it their places
            makes_room = True
            placed = len(view.holders)
            fewest = min(kept_up(view, record), placed + view.updated - unplaced + view.stopping) - most_new
            keep_old = min(keep_old, max(fewest, placed - max(unplaced - view.stopping, 0), 0))
    return RolloutPlan(
        target=target,
        fill=fill,
        wanted=view.wanted,
        most_new=most_new,
        keep_old=keep_old,
        surge=settings.surge,
        least=(kept_up(view, record) if unplaced else view.wanted) - settings.unavailable,
        ready_for_s=settings.ready_for,
        unplaced=max(unplaced - view.stopping - (view.coming if target == view.revision else 0), 0),
        makes_room=makes_room,
        keeps_unready=keeps_unready,
        why=why,
    )
