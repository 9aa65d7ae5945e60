"""One line of a kind in a period; the next one says how many were held back."""

from controller.runtime.log_limit import MAX_KINDS, LogLimit


def test_one_line_of_each_kind_in_a_period() -> None:
    now = 100.0
    limit = LogLimit(60, lambda: now)
    assert [limit.admit("a") for _ in range(4)] == [0, None, None, None]
    assert limit.admit("b") == 0
    now = 159.9
    assert limit.admit("a") is None
    now = 160.0
    assert (limit.admit("a"), limit.admit("a"), limit.admit("b")) == (4, None, 0)


def test_the_number_of_kinds_is_bounded() -> None:
    now = 0.0
    limit = LogLimit(60, lambda: now)
    for number in range(MAX_KINDS + 50):
        now += 0.001
        limit.admit(str(number))
    assert len(limit._kinds) == MAX_KINDS
    assert limit.admit(str(MAX_KINDS + 49)) is None, "the newest ones are kept"
