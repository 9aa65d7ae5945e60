"""The line of those who wait: compared with a plain list, under random use."""

from hypothesis import given
from hypothesis import strategies as st

from controller.runtime.waiting_line import WaitingLine


def test_tried_ones_stand_where_they_arrived() -> None:
    line: WaitingLine[str] = WaitingLine()
    for arrival, name in enumerate("abc"):
        line.join(arrival, name)
    line.leave(0)
    line.put_back(0, "a")
    assert line.oldest() == 0
    assert line.newest_untried() == 2
    assert (len(line), line.untried) == (3, 2)
    assert line[0] == "a"


@given(st.lists(st.tuples(st.sampled_from(["join", "oldest", "newest", "put back"]), st.integers(0, 100)), max_size=60))
def test_it_agrees_with_a_plain_list(steps: list[tuple[str, int]]) -> None:
    line: WaitingLine[int] = WaitingLine()
    waiting: dict[int, bool] = {}  # arrival → tried
    out: list[int] = []
    for arrival, (step, pick) in enumerate(steps):
        if step == "join":
            line.join(arrival, -arrival)
            waiting[arrival] = False
        elif step == "put back" and out:
            back = out.pop(pick % len(out))
            line.put_back(back, -back)
            waiting[back] = True
        elif step in ("oldest", "newest"):
            chosen = line.oldest() if step == "oldest" else line.newest_untried()
            if chosen is not None:
                assert line[chosen] == -chosen
                line.leave(chosen)
                del waiting[chosen]
                out.append(chosen)
        untried = [arrival for arrival, tried in waiting.items() if not tried]
        assert line.oldest() == min(waiting, default=None)
        assert line.newest_untried() == max(untried, default=None)
        assert (len(line), line.untried) == (len(waiting), len(untried))
