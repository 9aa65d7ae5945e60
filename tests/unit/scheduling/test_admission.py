"""Who is pushed out, for whom room is kept, and what the others are told."""

import time
from dataclasses import replace

from controller.domain.holdings import Holder, Holders
from controller.domain.pending import PendingInstance
from controller.domain.placement import Ask, Layout, Placed, Unplaced
from controller.scheduling.admission.admission import Decided, serve
from controller.scheduling.admission.preempt import find_preemption
from controller.scheduling.inventory.inventory import Inventory
from controller.scheduling.search.place import find, place
from schemas.reasons import Reason
from support.fleet import GIB, Fleet

G80 = 80 * GIB


def whole(instance: str, gpus: int, workers: int = 1, on: str = "") -> Ask:
    return Ask(instance, f"d-{instance}", (Layout(gpus, 0, True, workers),), workers=(on,) if on else ())


def running(inventory: Inventory, *asks: tuple[Ask, int, float]) -> list[Holder]:
    """Places these, with their priority and the time of their birth."""
    decisions = place(inventory, [ask for ask, _, _ in asks])
    found = []
    for decision, (_, priority, born) in zip(decisions, asks, strict=True):
        assert isinstance(decision, Placed)
        found.append(Holder(decision.instance, priority, born, frozenset(decision.workers), decision.claims))
    return found


def leave(inventory: Inventory, ask: Ask, holders: list[Holder]) -> list[str] | None:
    room = find_preemption(inventory, ask, holders)
    return None if room is None else [o.instance for o in room.leave]


def test_the_lowest_leave_though_they_are_more() -> None:
    inventory = Fleet().add("a", [G80] * 2).add("b", [G80] * 2).inventory()
    on = running(
        inventory, (whole("one", 2, on="a"), 20, 0), (whole("x", 1, on="b"), 10, 0), (whole("y", 1, on="b"), 10, 0)
    )
    assert leave(inventory, whole("p", 2), on) == ["x", "y"]


def test_of_equals_the_fewest_leave() -> None:
    inventory = Fleet().add("a", [G80] * 2).add("b", [G80] * 2).inventory()
    on = running(
        inventory, (whole("one", 2, on="a"), 10, 0), (whole("x", 1, on="b"), 10, 9), (whole("y", 1, on="b"), 10, 9)
    )
    assert leave(inventory, whole("p", 2), on) == ["one"]


def test_of_as_many_those_leave_that_hold_least_and_then_the_youngest() -> None:
    inventory = Fleet().add("a", [G80] * 4).inventory()
    on = running(inventory, (whole("big", 2), 10, 9), (whole("old", 1), 10, 1), (whole("young", 1), 10, 5))
    assert leave(inventory, whole("p", 1), on) == ["young"]


def test_a_gang_leaves_as_a_whole_and_counts_once() -> None:
    inventory = Fleet().add("a", [G80]).add("b", [G80]).inventory()
    on = running(inventory, (whole("gang", 2, workers=2), 10, 0))
    assert leave(inventory, whole("p", 1), on) == ["gang"]
    assert leave(inventory, whole("q", 2, workers=2), on) == ["gang"]


def test_nobody_leaves_where_even_empty_workers_would_not_do() -> None:
    inventory = Fleet().add("a", [G80] * 2).inventory()
    on = running(inventory, (whole("x", 2), 10, 0))
    assert leave(inventory, whole("p", 3), on) is None


def serve_all(inventory: Inventory, holders: Holders, *waiting: PendingInstance) -> dict[str, Decided]:
    served = list(serve(inventory, waiting, holders, reserve_after_s=60))
    inventory.rollback()
    return {s.decision.instance: s for s in served}


def reason(served: Decided) -> Reason | None:
    assert isinstance(served.decision, Unplaced)
    return served.decision.reason


def test_a_higher_one_pushes_out_and_what_comes_after_it_does_not_take_its_room() -> None:
    inventory = Fleet().add("a", [G80] * 2).inventory()
    on = running(inventory, (whole("x", 1), 10, 0))
    first = serve_all(
        inventory,
        Holders(tuple(on)),
        PendingInstance(whole("p", 2), 50, preempt=True),
        PendingInstance(whole("s", 1), 20),
    )
    assert [o.instance for o in first["p"].leave] == ["x"]
    assert (reason(first["p"]), reason(first["s"])) == (Reason.PREEMPTING, Reason.RESERVED)
    assert "p on a" in first["s"].decision.explain.message
    later = serve_all(
        inventory,
        Holders((), tuple(on)),
        PendingInstance(whole("p", 2), 50, preempt=True, pushing=True),
        PendingInstance(whole("s", 1), 20),
    )
    assert (later["p"].leave, reason(later["p"])) == ((), Reason.PREEMPTING)
    assert reason(later["s"]) == Reason.RESERVED


def test_no_second_victim_while_the_first_leaves_and_none_where_room_is_coming_anyway() -> None:
    inventory = Fleet().add("a", [G80]).add("b", [G80]).inventory()
    on = running(inventory, (whole("x", 1, on="a"), 10, 0), (whole("y", 1, on="b"), 10, 0))
    coming = serve_all(inventory, Holders((on[1],), (on[0],)), PendingInstance(whole("p", 1), 50, preempt=True))
    assert (coming["p"].leave, reason(coming["p"])) == ((), None)
    pushing = serve_all(
        inventory, Holders((on[0], on[1])), PendingInstance(whole("p", 1), 50, preempt=True, pushing=True)
    )
    assert pushing["p"].leave == ()


def test_two_who_push_do_not_count_on_the_same_room() -> None:
    inventory = Fleet().add("a", [G80]).add("b", [G80]).inventory()
    on = running(inventory, (whole("x", 1, on="a"), 10, 0), (whole("y", 1, on="b"), 10, 0))
    served = serve_all(
        inventory,
        Holders(tuple(on)),
        PendingInstance(whole("p", 1), 50, preempt=True),
        PendingInstance(whole("q", 1), 50, preempt=True),
        PendingInstance(whole("r", 1), 50, preempt=True),
    )
    assert sorted(o.instance for s in served.values() for o in s.leave) == ["x", "y"]
    assert served["r"].leave == ()


def test_equals_and_higher_ones_are_never_pushed_out() -> None:
    inventory = Fleet().add("a", [G80]).inventory()
    on = running(inventory, (whole("x", 1), 50, 0))
    assert serve_all(inventory, Holders(tuple(on)), PendingInstance(whole("p", 1), 50, preempt=True))["p"].leave == ()


def test_what_a_lower_one_may_not_push_out_a_higher_one_may() -> None:
    inventory = Fleet().add("a", [G80]).inventory()
    on = running(inventory, (whole("x", 1), 20, 0))
    low, high = PendingInstance(whole("low", 1), 10, preempt=True), PendingInstance(whole("high", 1), 30, preempt=True)
    served = serve_all(inventory, Holders(tuple(on)), low, high)  # as where a copy comes first
    assert (served["low"].leave, [o.instance for o in served["high"].leave]) == ((), ["x"])


def test_room_that_is_kept_for_another_keeps_nobody_from_pushing_out_elsewhere() -> None:
    inventory = Fleet().add("a", [G80] * 2).add("b", [G80]).inventory()
    on = running(inventory, (whole("x", 1, on="a"), 100, 0), (whole("y", 1, on="b"), 10, 0))
    waiting = PendingInstance(whole("big", 2), 100, waited_s=90), PendingInstance(whole("p", 1), 50, preempt=True)
    served = serve_all(inventory, Holders(tuple(on)), *waiting)
    assert [o.instance for o in served["p"].leave] == ["y"]
    later = serve_all(inventory, Holders(tuple(on[:1]), tuple(on[1:])), waiting[0], replace(waiting[1], pushing=True))
    assert (later["p"].leave, reason(later["p"])) == ((), Reason.PREEMPTING)
    nobody = serve_all(inventory, Holders(tuple(on[:1])), *waiting)
    assert reason(nobody["p"]) == Reason.RESERVED


def test_a_small_one_passes_a_big_one_until_that_has_waited_long() -> None:
    inventory = Fleet().add("a", [G80] * 4).add("b", [G80] * 4).inventory()
    on = running(
        inventory, (whole("x", 3, on="a"), 10, 0), (whole("y", 2, on="b"), 10, 0), (whole("z", 1, on="b"), 10, 0)
    )
    for waited_s, fits in ((59.0, True), (60.0, False)):
        served = serve_all(
            inventory,
            Holders(tuple(on)),
            PendingInstance(whole("big", 4), 10, waited_s=waited_s),
            PendingInstance(whole("s", 1), 10),
            PendingInstance(whole("t", 1), 10),
        )
        assert isinstance(served["s"].decision, Placed)
        assert isinstance(served["t"].decision, Placed) == fits
        assert served["big"].leave == ()
    # Kept is the worker on which one has to end, not the one on which two have to.
    assert isinstance(served["s"].decision, Placed)
    assert served["s"].decision.worker_id == "id-b"
    assert reason(served["t"]) == Reason.RESERVED


def test_room_is_kept_for_one_at_a_time_and_for_none_that_could_never_fit() -> None:
    inventory = Fleet().add("a", [G80] * 2).add("b", [G80] * 2).inventory()
    on = running(inventory, (whole("x", 1, on="a"), 10, 0), (whole("y", 1, on="b"), 10, 0))
    served = serve_all(
        inventory,
        Holders(tuple(on)),
        PendingInstance(whole("huge", 3), 10, waited_s=900),
        PendingInstance(whole("first", 2), 10, waited_s=900),
        PendingInstance(whole("second", 2), 10, waited_s=800),
        PendingInstance(whole("s", 1), 10),
        PendingInstance(whole("t", 1), 10),
    )
    assert isinstance(served["s"].decision, Placed)
    assert reason(served["t"]) == Reason.RESERVED
    assert "first on a" in served["t"].decision.explain.message


def test_equal_asks_that_do_not_fit_are_told_the_same_and_others_are_served_between_them() -> None:
    inventory = Fleet().add("a", [G80] * 2).inventory()
    served = serve_all(
        inventory,
        Holders(),
        PendingInstance(whole("big", 3)),
        PendingInstance(whole("small", 1)),
        PendingInstance(whole("as-big", 3)),
        PendingInstance(whole("pair", 2)),
    )
    first, second = served["big"].decision, served["as-big"].decision
    assert isinstance(first, Unplaced)
    assert isinstance(second, Unplaced)
    assert first.explain == second.explain
    assert isinstance(served["small"].decision, Placed)
    assert isinstance(served["pair"].decision, Unplaced)


def test_who_does_not_ask_for_all_leaves_no_room_kept() -> None:
    inventory = Fleet().add("a", [G80] * 2).inventory()
    on = running(inventory, (whole("x", 1), 10, 0))
    answers = serve(
        inventory,
        [PendingInstance(whole("p", 2), 50, preempt=True), PendingInstance(whole("s", 1), 20)],
        Holders(tuple(on)),
        reserve_after_s=60,
    )
    assert [o.instance for o in next(answers).leave] == ["x"]
    assert find(inventory, whole("s", 1)) is None
    answers.close()
    assert find(inventory, whole("s", 1)) is not None


def test_a_pass_ends_after_so_many_pushes_and_the_next_goes_on() -> None:
    inventory = Fleet().add("a", [G80] * 4).inventory()
    on = running(inventory, *((whole(f"x{n}", 1), 10, 0) for n in range(4)))
    waiting = [PendingInstance(whole(f"p{n}", 1), 50, preempt=True) for n in range(3)]
    first = list(serve(inventory, waiting, Holders(tuple(on)), reserve_after_s=60, most_pushes=2))
    inventory.rollback()
    assert [len(s.leave) for s in first] == [1, 1]
    leaving = {o for s in first for o in s.leave}
    waiting[:2] = [PendingInstance(w.ask, 50, preempt=True, pushing=True) for w in waiting[:2]]
    staying = tuple(o for o in on if o not in leaving)
    second = list(serve(inventory, waiting, Holders(staying, tuple(leaving)), reserve_after_s=60, most_pushes=2))
    assert [len(s.leave) for s in second] == [0, 0, 1]


def test_many_that_may_push_are_answered_in_a_moment() -> None:
    """Whoever finds nobody to push out finds so once for all of its like, and by what the priorities say of GPUs."""
    fleet = Fleet()
    for n in range(200):
        fleet.add(f"w{n:03}", [G80] * 8)
    inventory = fleet.inventory()
    on = running(inventory, *((whole(f"x{n}", 1), n % 40, n) for n in range(1600)))
    waiting = [PendingInstance(whole(f"p{n}", 9), 90, preempt=True, waited_s=90) for n in range(2_000)]
    began = time.process_time()
    served = list(serve(inventory, waiting, Holders(tuple(on)), reserve_after_s=60))
    assert time.process_time() - began < 3
    assert not any(s.leave for s in served)


def test_nobody_leaves_for_one_whose_room_another_takes_who_comes_before_it() -> None:
    inventory = Fleet().add("a", [G80] * 2).inventory()
    on = running(inventory, (whole("x", 1), 10, 0), (whole("y", 1), 10, 1))
    mid, high = PendingInstance(whole("mid", 1), 50), PendingInstance(whole("hi", 1), 30, preempt=True)
    served = serve_all(inventory, Holders(tuple(on)), mid, high)
    assert served["hi"].leave == ()
    assert served["hi"].decision.explain.note == "pushes nobody out, since mid comes before it and would take the room"
    first = serve_all(inventory, Holders(tuple(on)), PendingInstance(whole("huge", 3), 50), high)
    assert [o.instance for o in first["hi"].leave] == ["y"], "who comes before would not fit there either"
    higher = serve_all(inventory, Holders(tuple(on)), PendingInstance(whole("hi", 1), 60, preempt=True), mid)
    assert [o.instance for o in higher["hi"].leave] == ["y"]
