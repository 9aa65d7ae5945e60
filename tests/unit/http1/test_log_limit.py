"""One line of a kind in a period; the next one says how many were held back."""

from http1.daemon.log_limit import MAX_KINDS, LogLimit


def test_one_line_of_each_kind_in_a_period() -> None:
    now = 100.0
    limit = LogLimit(60, lambda: now)
    assert [limit.admit("a") for _ in range(4)] == [0, None, None, None]
    assert limit.admit("b") == 0
    now = 159.9
    assert limit.admit("a") is None
    now = 160.0
    assert (limit.admit("a"), limit.admit("a"), limit.admit("b")) == (4, None, 0)


def test_made_up_kinds_are_bounded_in_number_and_in_lines() -> None:
    now = 0.0
    limit = LogLimit(60, lambda: now)
    admitted = [limit.admit("ours")]
    for number in range(MAX_KINDS + 50):
        now += 0.001
        admitted.append(limit.admit(str(number)))
    assert len(limit._kinds) == MAX_KINDS
    assert admitted == [0] * MAX_KINDS + [None] * 51
    now = 70.0
    assert [limit.admit("later"), limit.admit("ours"), limit.admit("7")] == [51, 0, 0], "what was held back is told"
