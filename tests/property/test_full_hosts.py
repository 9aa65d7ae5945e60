"""Rollouts where little or nothing is free: each ends, or names what holds the places and a setting that moves it."""

import re

from hypothesis import Phase, example, given
from hypothesis import strategies as st

from controller.domain.phases import InstancePhase
from support.builders.rollouts import RollingWorld, rolled_out
from support.profiles import examples

_UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)  # an example takes too long to be shrunk
_BOUNDS = st.tuples(st.integers(0, 2), st.integers(0, 2)).filter(any)
_CANARIES = st.none() | st.builds(lambda weight: {"weight": weight, "for": 5}, st.integers(1, 99))
_HANG = st.lists(st.sampled_from(["scheduled", "starting", "backoff", "unhealthy", "unreachable"]), max_size=4)
_GROWTH = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=2)


@given(
    replicas=st.integers(1, 5), spare=st.integers(0, 1), bounds=_BOUNDS, canary=_CANARIES, hang=_HANG, grows=_GROWTH,
    update=st.sampled_from(["rolling", "rolling", "recreate"]), bad=st.booleans(), lost=st.booleans(),
)  # fmt: skip
@example(
    replicas=3, spare=0, bounds=(1, 1), canary={"weight": 77, "for": 5}, hang=["unreachable"] * 3, grows=[(3, 27)],
    update="rolling", bad=False, lost=True,
)  # fmt: skip
@examples(60, phases=_UNSHRUNK)
def test_a_rollout_on_full_hosts_ends_or_names_what_moves_it(
    *, replicas: int, spare: int, bounds: tuple[int, int], canary: dict[str, int] | None, hang: list[str],
    grows: list[tuple[int, int]], update: str, bad: bool, lost: bool,
) -> None:  # fmt: skip
    surge, unavailable = bounds
    rollout = {"surge": surge, "unavailable": unavailable, "ready_for": 2, "canary": canary}
    world = rolled_out(
        replicas=replicas, capacity=replicas + spare, rollout=rollout, start_timeout=20.0, update=update,
        bad={2} if bad and update == "rolling" else set(),
    )  # fmt: skip
    for name, phase in zip(list(world.instances), hang, strict=False):
        world.hang(name, phase)
    serving = replicas - len(hang[:replicas])
    world.begin_bounds()
    world.apply()
    for more, seconds in grows:
        world.replicas += more
        world.play(seconds)
    if not lost:
        for name in list(world.silent):
            world.returns(name)
    world.play(60).play(1200, tick_s=10.0)
    assert world.least_ready >= serving - (unavailable if update == "rolling" else 1)
    for _ in range(10):
        if _has_ended(world):
            return
        _follow_advice(world)
        world.play(60).play(600, tick_s=10.0)
    raise AssertionError(f"stuck: {world.record}, {list(world.instances.values())}")


def _has_ended(world: RollingWorld) -> bool:
    if world.update == "rolling" and world.state in ("failed", "aborted"):
        return True
    new = world.of(world.revision)
    lost = sum(name in world.instances for name in world.silent)  # claims of lost workers stay
    # What is pending holds no place: while a canary waits for hosts, missing replicas get the old revision.
    held = [i for i in world.instances.values() if i.phase is not InstancePhase.PENDING and i.id not in world.silent]
    old = [i for i in held if i.revision != world.revision]
    return not old and world.running(world.revision) == min(world.replicas, world.capacity - lost) and bool(new)


def _follow_advice(world: RollingWorld) -> None:
    """A rollout that goes no further says so, names an old replica that holds a place, and what would move it."""
    assert world.update == "rolling"
    assert world.record is not None
    told = world.record.message
    assert world.record.reason == "rollout_blocked", (told, list(world.instances.values()))
    assert any(i.id in told for i in world.instances.values() if i.revision != world.revision)
    enough = re.search(r"`rollout.unavailable: (\d+)`", told)
    assert enough is not None
    world.rollout = {**world.rollout, "unavailable": int(enough[1])}
    world._specs.clear()
