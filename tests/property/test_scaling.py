"""What holds of the number of replicas whatever is seen, in whatever order, at whatever times."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.scaling import Demand, EngineLoad, GatewayLoad, Replicas, ScalingReason, ScalingRule, Wish
from support.builders.scaling import Watched
from support.profiles import examples

ROUNDING_S = 1e-6  # of times that are sums of floats

_LOADS = st.lists(
    st.builds(
        GatewayLoad, st.floats(0, 300), st.integers(0, 200), st.integers(0, 100), st.integers(0, 5)
    ), max_size=3,
)  # fmt: skip
_DEMANDS = st.builds(Demand, _LOADS.map(tuple), st.sampled_from([(), (), (), ("q",)]), st.sampled_from([0, 1, 1, 1, 2]))
_ENGINES = st.lists(
    st.builds(EngineLoad, st.none() | st.integers(0, 3), st.none() | st.floats(0, 1)), max_size=4
).map(tuple)  # fmt: skip
_REPLICAS = st.builds(
    Replicas, st.integers(0, 8), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2), st.integers(0, 3)
)
_RULES = st.builds(
    lambda low, more, target, window, down, idle: ScalingRule(low, low + more, target, window, down, idle),
    st.integers(0, 3), st.integers(1, 8), st.floats(0.5, 50), st.floats(1, 60), st.floats(1, 600), st.floats(1, 900),
)  # fmt: skip
_LOOKS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.3, 1.0, 1.0, 2.5, 4.9, 40.0, 700.0]),
        _DEMANDS,
        _ENGINES,
        _REPLICAS,
        st.sampled_from([0, 0, 0, 2]),
        st.sampled_from([0.0, 0.0, 5.0]),
    ),
    min_size=1,
    max_size=40,
)


@given(rule=_RULES, number=st.none() | st.integers(0, 12), looks=_LOOKS)
@examples(200)
def test_whatever_is_seen(rule: ScalingRule, number: int | None, looks: list) -> None:
    watched = Watched(number, rule=rule)
    wishes: list[tuple[float, int]] = [(watched.now, watched.view.present)]
    raised: list[float] = []
    requested_at = watched.now
    for passed_s, demand, loads, replicas, wakes, awake_for_s in looks:
        watched.skip(passed_s)
        before = watched.view.present
        wish = watched.see(
            demand=demand, engines=loads, replicas=replicas, wakes=wakes, awake_for_s=awake_for_s, follow=False
        )
        assert rule.min <= wish.number <= rule.max
        if demand.at_once or demand.mean or not demand.known or wakes or awake_for_s:
            requested_at = watched.now
        if wish.reason is ScalingReason.IDLE and before:
            assert watched.now - requested_at >= rule.idle_after_s, "no request for so long, and all of it was seen"
        sleeps = wish.reason in (ScalingReason.IDLE, ScalingReason.WAKE_WITHDRAWN)
        if wish.number < before:
            assert demand.known, "unknown removes nothing"
            _check_removal(watched.now, wish, before, rule, wishes)
        if sleeps and wish.number < before:
            assert wish.number == demand.waiting == wakes == awake_for_s == 0
        if before == 0:
            assert (wish.number > 0) == bool(demand.waiting or wakes or awake_for_s), "at once, and for nothing else"
        if demand.waiting and replicas.running == 0:
            assert wish.number >= min(rule.max, -(-demand.waiting // max(rule.target, 1))), "at once from zero"
        if wish.saturated:
            assert wish.number == before + 1
            assert not raised or watched.now - raised[-1] >= 30
            raised.append(watched.now)
        wishes.append((watched.now, wish.needed))
        watched.view = replace(watched.view, number=wish.number)


def _check_removal(now: float, wish: Wish, before: int, rule: ScalingRule, wishes: list[tuple[float, int]]) -> None:
    if wish.reason not in (ScalingReason.IDLE, ScalingReason.WAKE_WITHDRAWN):
        recent = [n for at, n in wishes if at > now - rule.down_window_s]
        assert wish.number >= min(before, max([0, *recent])), "down to the largest wish of the window"
        assert now - wishes[0][0] >= rule.down_window_s - ROUNDING_S, "only after it was lived through"
