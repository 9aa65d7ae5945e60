import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http1.bodies import Bodies, BodiesFullError


def test_a_body_is_held_until_its_request_ends() -> None:
    bodies = Bodies(100, 60)
    with bodies.hold("a", 40) as hold:
        hold.take_up_to(30)
        assert bodies.held == 40
        hold.take_up_to(50)
        assert bodies.held == 50
    assert bodies.held == 0


@pytest.mark.parametrize(("key", "of_key", "limit"), [("a", True, 60), ("c", False, 100)])
def test_a_body_beyond_a_bound_is_refused_and_holds_nothing(key: str, of_key: bool, limit: int) -> None:
    bodies = Bodies(100, 60)
    with bodies.hold("a", 50), bodies.hold("b", 40):
        with pytest.raises(BodiesFullError) as refused, bodies.hold(key, 20):
            pytest.fail("it was admitted")
        assert (refused.value.of_key, refused.value.limit_bytes) == (of_key, limit)
        assert bodies.held == 90


def test_a_body_that_grows_beyond_the_bound_is_released_whole() -> None:
    bodies = Bodies(100, 60)
    with bodies.hold("a") as hold:
        hold.take(50)
        with pytest.raises(BodiesFullError):
            hold.take(20)
        assert bodies.held == 50
    assert bodies.held == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=30))
def test_nothing_is_held_once_all_have_ended_and_never_more_than_the_bounds(asked: list[tuple[str, int]]) -> None:
    bodies = Bodies(100, 60)
    with contextlib.ExitStack() as stack:
        sizes = dict.fromkeys("abc", 0)
        for key, size in asked:
            with contextlib.suppress(BodiesFullError):
                stack.enter_context(bodies.hold(key, size))
                sizes[key] += size
        assert bodies.held == sum(sizes.values()) <= 100
        assert max(sizes.values()) <= 60
    assert bodies.held == 0
    assert bodies._of_key == {}
