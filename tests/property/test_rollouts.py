"""What holds of rollouts whatever is applied, paused, killed or scaled, at whatever times."""

from hypothesis import Phase, given
from hypothesis import strategies as st

from controller.domain.phases import InstancePhase
from controller.domain.rollouts import RequestOutcomes
from support.builders.rollouts import RollingWorld, rolled_out
from support.profiles import examples

_UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)  # an example takes too long to be shrunk
_SETTINGS = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any)
_CANARIES = st.none() | st.builds(
    lambda weight, seconds: {"weight": weight, "for": seconds}, st.integers(1, 99), st.integers(1, 40)
)
_ACTS = st.lists(
    st.tuples(
        st.sampled_from(["apply", "back", "pause", "resume", "errors", "nothing"]), st.integers(1, 25)
    ), max_size=6,
)  # fmt: skip


@given(
    replicas=st.integers(1, 6), bounds=_SETTINGS, ready_for=st.integers(0, 5), canary=_CANARIES,
    drains=st.integers(0, 8), capacity_spare=st.integers(0, 3), bad=st.booleans(), acts=_ACTS,
)  # fmt: skip
@examples(40, phases=_UNSHRUNK)
def test_bounds_hold_at_every_moment_and_it_ends(
    *, replicas: int, bounds: tuple[int, int], ready_for: int, canary: dict[str, int] | None, drains: int,
    capacity_spare: int, bad: bool, acts: list[tuple[str, int]],
) -> None:  # fmt: skip
    surge, unavailable = bounds
    rollout = {"surge": surge, "unavailable": unavailable, "ready_for": ready_for, "canary": canary, "abort": {}}
    world = rolled_out(
        replicas=replicas, rollout=rollout, drains_s=float(drains), start_timeout=5.0, bad={2} if bad else set(),
        capacity=replicas + max(capacity_spare, 1 if not unavailable else 0),
    )  # fmt: skip
    world.apply()
    for act, seconds in acts:
        _act(world, act)
        world.play(seconds)
    if world.paused:
        world.pause(paused=False)
    world.play(40).play(1200, tick_s=20.0)
    assert world.least_ready >= replicas - unavailable
    assert world.most_in_all <= replicas + surge
    assert world.state in ("complete", "failed", "aborted")
    assert len(world.instances) == replicas
    assert all(i.phase is InstancePhase.RUNNING for i in world.instances.values())
    if world.state == "complete":
        assert {i.revision for i in world.instances.values()} == {world.revision}
    assert world.record is not None
    assert not bad or world.revision != 2 or world.state in ("failed", "aborted")


def _act(world: RollingWorld, act: str) -> None:
    match act:
        case "apply":
            world.outcomes = RequestOutcomes()
            world.apply()
        case "back":
            if world.record is not None and world.record.fallback is not None:
                world.apply(back_to=world.record.fallback)
        case "pause" | "resume":
            world.pause(paused=act == "pause")
        case "errors":
            world.outcomes = RequestOutcomes(1000, 500)


@given(
    numbers=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 20)), max_size=5), canary=_CANARIES,
    kills=st.lists(st.integers(0, 5), max_size=3),
)  # fmt: skip
@examples(30, phases=_UNSHRUNK)
def test_with_another_number_and_crashes_in_mid_rollout_it_ends(
    *, numbers: list[tuple[int, int]], canary: dict[str, int] | None, kills: list[int]
) -> None:
    world = rolled_out(rollout={"ready_for": 2, "canary": canary}).apply()
    for number, seconds in numbers:
        world.replicas = number
        world.play(seconds)
    for n in kills:
        running = [i.id for i in world.instances.values() if i.phase is InstancePhase.RUNNING]
        if running:
            world.kill(running[n % len(running)])
        world.play(3)
    world.replicas = 3
    world.play(40).play(2400, tick_s=40.0)
    assert (world.state, world.running(2), len(world.instances)) == ("complete", 3, 3)
