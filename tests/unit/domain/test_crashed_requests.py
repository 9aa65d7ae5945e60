"""Which requests are refused since they crash engines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.crashed_requests import (
    ALONE_AFTER_S,
    ANSWERED_S,
    REFUSED_S,
    UNDECIDED_S,
    RequestAtEnd,
    Suspicion,
    answered_at_ends,
    suspicions,
)

POISON, OTHER = b"p" * 32, b"o" * 32


def end(
    instance: str = "a", request: bytes = POISON, age_s: float = 10, *, crashed: bool | None = True
) -> RequestAtEnd:
    return RequestAtEnd(instance, 1, request, age_s, crashed)


def test_alone_at_one_crash() -> None:
    assert suspicions([end()]) == {POISON: Suspicion(1, REFUSED_S - 10)}


def test_with_others_it_takes_two_crashes_and_the_others_are_not_touched() -> None:
    first = [end("a"), end("a", OTHER)]
    assert suspicions(first) == {}
    second = [end("b", age_s=4), end("b", b"x" * 32, 4)]
    assert suspicions([*first, *second]) == {POISON: Suspicion(2, REFUSED_S - 4)}


@pytest.mark.parametrize("crashed", [False, None])
def test_ends_that_are_no_crash_count_nothing(crashed: bool | None) -> None:
    assert suspicions([end(crashed=crashed), end("b", crashed=crashed)]) == {}


def test_it_ends_after_its_time() -> None:
    assert suspicions([end(age_s=REFUSED_S)]) == {}
    assert suspicions([end(age_s=REFUSED_S + 9), end("b", age_s=REFUSED_S + 1)]) == {}


def test_the_second_crash_counts_from_itself() -> None:
    first, others = end(age_s=290), end("a", OTHER, 290)
    assert suspicions([first, others, end("b", age_s=10), end("b", b"x" * 32, 10)])[POISON].left_s == REFUSED_S - 10
    assert suspicions([end(age_s=320), end("a", OTHER, 320), end("b", age_s=10), end("b", b"x" * 32, 10)]) == {}


def test_it_waits_until_the_others_have_written() -> None:
    found = suspicions([end(age_s=ALONE_AFTER_S / 2)])
    assert found == {POISON: Suspicion(0, ALONE_AFTER_S / 2)}


def test_it_waits_for_what_is_reported_but_not_for_long() -> None:
    assert suspicions([end(crashed=None, age_s=1), end("a", OTHER, 1, crashed=None)]).keys() == {POISON, OTHER}
    assert suspicions([end(crashed=None, age_s=UNDECIDED_S)]) == {}


@pytest.mark.parametrize(
    ("answered", "counts"), [(100.0, True), (100 - ANSWERED_S, True), (99.9 - ANSWERED_S, False), (0.0, False)]
)
def test_an_error_shortly_before_an_end_counts_as_in_flight_at_it(answered: float, counts: bool) -> None:
    assert answered_at_ends({("a", 1, POISON): answered}, {("a", 1): 100.0}) == [("a", 1, POISON)] * counts


def test_an_error_counts_at_no_other_engines_end() -> None:
    errors = {("a", 1, POISON): 100.0, ("b", 1, OTHER): 100.0}
    assert answered_at_ends(errors, {("a", 2): 100.0, ("b", 1): 100.0, ("c", 1): 100.0}) == [("b", 1, OTHER)]
    assert answered_at_ends(errors, {}) == []


@given(
    st.lists(
        st.builds(
            RequestAtEnd,
            st.sampled_from("abc"),
            st.integers(1, 2),
            st.sampled_from([POISON, OTHER, b"x" * 32]),
            st.floats(0, 2 * REFUSED_S),
            st.sampled_from([True, False, None]),
        ),
        unique_by=lambda one: (one.instance, one.epoch, one.request),
    )
)
def test_no_request_is_refused_but_by_the_rule(ends: list[RequestAtEnd]) -> None:
    for request, found in suspicions(ends).items():
        assert 0 < found.left_s <= REFUSED_S
        if found.crashes:
            crashes = [one for one in ends if one.request == request and one.crashed]
            alone = [
                one
                for one in crashes
                if sum((other.instance, other.epoch) == (one.instance, one.epoch) for other in ends) == 1
            ]
            assert len(crashes) > 1 or alone
