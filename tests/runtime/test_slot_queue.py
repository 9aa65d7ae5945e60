"""The queue for slots, compared with a plain list under random use."""

from hypothesis import given
from hypothesis import strategies as st

from controller.runtime.slots import SlotQueue


def test_requeued_items_keep_their_place() -> None:
    queue: SlotQueue[str] = SlotQueue()
    for arrival, name in enumerate("abc"):
        queue.append(arrival, name)
    queue.remove(0)
    queue.requeue(0, "a")
    assert queue.oldest() == 0
    assert queue.newest_fresh() == 2
    assert (len(queue), queue.fresh) == (3, 2)
    assert queue[0] == "a"


@given(
    st.lists(st.tuples(st.sampled_from(["append", "oldest", "newest", "requeue"]), st.integers(0, 100)), max_size=60)
)
def test_it_agrees_with_a_plain_list(steps: list[tuple[str, int]]) -> None:
    queue: SlotQueue[int] = SlotQueue()
    waiting: dict[int, bool] = {}  # arrival → requeued
    out: list[int] = []
    for arrival, (step, pick) in enumerate(steps):
        if step == "append":
            queue.append(arrival, -arrival)
            waiting[arrival] = False
        elif step == "requeue" and out:
            back = out.pop(pick % len(out))
            queue.requeue(back, -back)
            waiting[back] = True
        elif step in ("oldest", "newest"):
            chosen = queue.oldest() if step == "oldest" else queue.newest_fresh()
            if chosen is not None:
                assert queue[chosen] == -chosen
                queue.remove(chosen)
                del waiting[chosen]
                out.append(chosen)
        fresh = [arrival for arrival, requeued in waiting.items() if not requeued]
        assert queue.oldest() == min(waiting, default=None)
        assert queue.newest_fresh() == max(fresh, default=None)
        assert (len(queue), queue.fresh) == (len(waiting), len(fresh))
