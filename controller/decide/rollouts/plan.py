"""The number of instances that a rollout now wants of each revision. Pure."""

from dataclasses import dataclass

from controller.decide.rollouts.judge import RolloutView, canary_replicas, kept_up
from controller.domain.rollouts import RolloutRecord, RolloutState

S = RolloutState


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The present aim, and its bounds, in numbers of instances."""

    target: int  # the revision that takes the place of the other revisions
    fill: int  # the revision of a missing replica
    wanted: int
    most_new: int  # of the target
    keep_old: int  # the fewest of other revisions that stay
    surge: int  # beyond the wanted number
    least: int  # the fewest that serve after a serving instance has stopped
    ready_for_s: float  # until a running instance of the target is available
    unplaced: int = 0  # of the target: need the places of other revisions; ending and starting ones do not suffice
    makes_room: bool = False  # instances of other revisions without a place let the target go first
    keeps_unready: bool = True  # replicas of the target that do not run are tried again
    why: str = "its spec was changed"  # message of each stop


def plan_of(view: RolloutView, record: RolloutRecord, *, running: int, others: int) -> RolloutPlan:
    """`running`: replicas of the revision that run now, however long. `others`: replicas of other revisions."""
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
    elif view.snapshot.paused and record.state is not S.COMPLETE:
        keep_old = others
        most_new = max(view.updated, view.wanted - others)
        if record.fallback is not None:
            fill, most_new = record.fallback, view.updated
    elif record.state is S.CANARY and stable is not None:
        fill = stable
        most_new = canary_replicas(view, record)
        keep_old = min(view.wanted, view.wanted + settings.surge - most_new)
        if unplaced:  # without free capacity, old replicas yield their places to it
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
