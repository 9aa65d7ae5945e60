"""Admission: which victims are preempted, for which instances capacity is reserved, and what the others report."""

import time
from dataclasses import replace
from typing import Any

import pytest

from controller.domain.admission import Destination, Holder, Holders, PendingInstance
from controller.domain.placement import Ask, Layout, Placed, Unplaced
from controller.scheduling.admission.admit import AdmissionDecision, ReserveTimes, admit, may_reserve
from controller.scheduling.admission.victims import find_victims
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.cached_search import find
from controller.scheduling.search.place import place
from schemas.placement_reasons import Reason
from support.builders.fleet import GIB, Fleet

G80 = 80 * GIB


def whole(instance: str, gpus: int, workers: int = 1, on: str = "") -> Ask:
    return Ask(instance, f"d-{instance}", (Layout(gpus, 0, True, workers),), workers=(on,) if on else ())


def running(inventory: Inventory, *asks: tuple[Ask, int, float]) -> list[Holder]:
    """Places these asks, each with its priority and queue time."""
    decisions = place(inventory, [ask for ask, _, _ in asks])
    found = []
    for decision, (_, priority, queued_at) in zip(decisions, asks, strict=True):
        assert isinstance(decision, Placed)
        found.append(Holder(decision.instance, priority, queued_at, frozenset(decision.workers), decision.claims))
    return found


def victims_of(inventory: Inventory, ask: Ask, holders: list[Holder]) -> list[str] | None:
    reservation = find_victims(inventory, ask, holders)
    return None if reservation is None else [o.instance for o in reservation.victims]


def test_the_lowest_priorities_are_preempted_though_they_are_more() -> None:
    inventory = Fleet().add("a", [G80] * 2).add("b", [G80] * 2).inventory()
    on = running(
        inventory, (whole("one", 2, on="a"), 20, 0), (whole("x", 1, on="b"), 10, 0), (whole("y", 1, on="b"), 10, 0)
    )
    assert victims_of(inventory, whole("p", 2), on) == ["x", "y"]


def test_of_equal_priorities_the_fewest_are_preempted() -> None:
    inventory = Fleet().add("a", [G80] * 2).add("b", [G80] * 2).inventory()
    on = running(
        inventory, (whole("one", 2, on="a"), 10, 0), (whole("x", 1, on="b"), 10, 9), (whole("y", 1, on="b"), 10, 9)
    )
    assert victims_of(inventory, whole("p", 2), on) == ["one"]


def test_of_as_many_those_with_the_fewest_gpus_are_preempted_then_the_youngest() -> None:
    inventory = Fleet().add("a", [G80] * 4).inventory()
    on = running(inventory, (whole("big", 2), 10, 9), (whole("old", 1), 10, 1), (whole("young", 1), 10, 5))
    assert victims_of(inventory, whole("p", 1), on) == ["young"]


def test_a_gang_is_preempted_as_a_whole_and_counts_once() -> None:
    inventory = Fleet().add("a", [G80]).add("b", [G80]).inventory()
    on = running(inventory, (whole("gang", 2, workers=2), 10, 0))
    assert victims_of(inventory, whole("p", 1), on) == ["gang"]
    assert victims_of(inventory, whole("q", 2, workers=2), on) == ["gang"]


def test_nothing_is_preempted_for_an_ask_that_does_not_fit_on_empty_workers() -> None:
    inventory = Fleet().add("a", [G80] * 2).inventory()
    on = running(inventory, (whole("x", 2), 10, 0))
    assert victims_of(inventory, whole("p", 3), on) is None


def admit_all(inventory: Inventory, holders: Holders, *waiting: PendingInstance) -> dict[str, AdmissionDecision]:
    admitted = list(admit(inventory, waiting, holders, reserve=ReserveTimes(60)))
    inventory.rollback()
    return {s.decision.instance: s for s in admitted}


def reason(admitted: AdmissionDecision) -> Reason | None:
    assert isinstance(admitted.decision, Unplaced)
    return admitted.decision.reason


def test_a_preemptor_gets_a_reservation_that_later_instances_do_not_take() -> None:
    inventory = Fleet().add("a", [G80] * 2).inventory()
    on = running(inventory, (whole("x", 1), 10, 0))
    first = admit_all(
        inventory,
        Holders(tuple(on)),
        PendingInstance(whole("p", 2), 50, preempt=True),
        PendingInstance(whole("s", 1), 20),
    )
    assert [o.instance for o in first["p"].victims] == ["x"]
    assert (reason(first["p"]), reason(first["s"])) == (Reason.PREEMPTING, Reason.RESERVED)
    assert "p on a" in first["s"].decision.explain.message
    later = admit_all(
        inventory,
        Holders((), tuple(on)),
        PendingInstance(whole("p", 2), 50, preempt=True, preempting=True),
        PendingInstance(whole("s", 1), 20),
    )
    assert (later["p"].victims, reason(later["p"])) == ((), Reason.PREEMPTING)
    assert reason(later["s"]) == Reason.RESERVED


def test_no_second_victim_while_the_first_ends_and_none_where_capacity_is_being_freed() -> None:
    inventory = Fleet().add("a", [G80]).add("b", [G80]).inventory()
    on = running(inventory, (whole("x", 1, on="a"), 10, 0), (whole("y", 1, on="b"), 10, 0))
    coming = admit_all(inventory, Holders((on[1],), (on[0],)), PendingInstance(whole("p", 1), 50, preempt=True))
    assert (coming["p"].victims, reason(coming["p"])) == ((), None)
    preempting = admit_all(
        inventory, Holders((on[0], on[1])), PendingInstance(whole("p", 1), 50, preempt=True, preempting=True)
    )
    assert preempting["p"].victims == ()


def test_two_preemptors_do_not_count_on_the_same_victim() -> None:
    inventory = Fleet().add("a", [G80]).add("b", [G80]).inventory()
    on = running(inventory, (whole("x", 1, on="a"), 10, 0), (whole("y", 1, on="b"), 10, 0))
    admitted = admit_all(
        inventory,
        Holders(tuple(on)),
        PendingInstance(whole("p", 1), 50, preempt=True),
        PendingInstance(whole("q", 1), 50, preempt=True),
        PendingInstance(whole("r", 1), 50, preempt=True),
    )
    assert sorted(o.instance for s in admitted.values() for o in s.victims) == ["x", "y"]
    assert admitted["r"].victims == ()


def test_equal_and_higher_priorities_are_never_preempted() -> None:
    inventory = Fleet().add("a", [G80]).inventory()
    on = running(inventory, (whole("x", 1), 50, 0))
    assert admit_all(inventory, Holders(tuple(on)), PendingInstance(whole("p", 1), 50, preempt=True))["p"].victims == ()


def test_a_higher_priority_may_preempt_what_a_lower_one_may_not() -> None:
    inventory = Fleet().add("a", [G80]).inventory()
    on = running(inventory, (whole("x", 1), 20, 0))
    low, high = PendingInstance(whole("low", 1), 10, preempt=True), PendingInstance(whole("high", 1), 30, preempt=True)
    admitted = admit_all(inventory, Holders(tuple(on)), low, high)  # as for a replacement, which comes first
    assert (admitted["low"].victims, [o.instance for o in admitted["high"].victims]) == ((), ["x"])


def test_a_reservation_for_another_does_not_prevent_preemption_elsewhere() -> None:
    inventory = Fleet().add("a", [G80] * 2).add("b", [G80]).inventory()
    on = running(inventory, (whole("x", 1, on="a"), 100, 0), (whole("y", 1, on="b"), 10, 0))
    waiting = PendingInstance(whole("big", 2), 100, waited_s=90), PendingInstance(whole("p", 1), 50, preempt=True)
    admitted = admit_all(inventory, Holders(tuple(on)), *waiting)
    assert [o.instance for o in admitted["p"].victims] == ["y"]
    later = admit_all(
        inventory, Holders(tuple(on[:1]), tuple(on[1:])), waiting[0], replace(waiting[1], preempting=True)
    )
    assert (later["p"].victims, reason(later["p"])) == ((), Reason.PREEMPTING)
    none = admit_all(inventory, Holders(tuple(on[:1])), *waiting)
    assert reason(none["p"]) == Reason.RESERVED


def test_a_small_one_is_backfilled_until_the_large_one_has_been_pending_long() -> None:
    inventory = Fleet().add("a", [G80] * 4).add("b", [G80] * 4).inventory()
    on = running(
        inventory, (whole("x", 3, on="a"), 10, 0), (whole("y", 2, on="b"), 10, 0), (whole("z", 1, on="b"), 10, 0)
    )
    for waited_s, fits in ((59.0, True), (60.0, False)):
        admitted = admit_all(
            inventory,
            Holders(tuple(on)),
            PendingInstance(whole("big", 4), 10, waited_s=waited_s),
            PendingInstance(whole("s", 1), 10),
            PendingInstance(whole("t", 1), 10),
        )
        assert isinstance(admitted["s"].decision, Placed)
        assert isinstance(admitted["t"].decision, Placed) == fits
        assert admitted["big"].victims == ()
    # Reserved is the worker on which one has to end, not the one on which two have to.
    assert isinstance(admitted["s"].decision, Placed)
    assert admitted["s"].decision.worker_id == "id-b"
    assert reason(admitted["t"]) == Reason.RESERVED


def test_one_reservation_at_a_time_and_none_for_what_could_never_fit() -> None:
    inventory = Fleet().add("a", [G80] * 2).add("b", [G80] * 2).inventory()
    on = running(inventory, (whole("x", 1, on="a"), 10, 0), (whole("y", 1, on="b"), 10, 0))
    admitted = admit_all(
        inventory,
        Holders(tuple(on)),
        PendingInstance(whole("huge", 3), 10, waited_s=900),
        PendingInstance(whole("first", 2), 10, waited_s=900),
        PendingInstance(whole("second", 2), 10, waited_s=800),
        PendingInstance(whole("s", 1), 10),
        PendingInstance(whole("t", 1), 10),
    )
    assert isinstance(admitted["s"].decision, Placed)
    assert reason(admitted["t"]) == Reason.RESERVED
    assert "first on a" in admitted["t"].decision.explain.message


def test_equal_asks_get_one_explanation_and_others_are_placed_between_them() -> None:
    inventory = Fleet().add("a", [G80] * 2).inventory()
    admitted = admit_all(
        inventory,
        Holders(),
        PendingInstance(whole("big", 3)),
        PendingInstance(whole("small", 1)),
        PendingInstance(whole("as-big", 3)),
        PendingInstance(whole("pair", 2)),
    )
    first, second = admitted["big"].decision, admitted["as-big"].decision
    assert isinstance(first, Unplaced)
    assert isinstance(second, Unplaced)
    assert first.explain == second.explain
    assert isinstance(admitted["small"].decision, Placed)
    assert isinstance(admitted["pair"].decision, Unplaced)


def test_closing_early_leaves_no_reservation() -> None:
    inventory = Fleet().add("a", [G80] * 2).inventory()
    on = running(inventory, (whole("x", 1), 10, 0))
    answers = admit(
        inventory,
        [PendingInstance(whole("p", 2), 50, preempt=True), PendingInstance(whole("s", 1), 20)],
        Holders(tuple(on)),
        reserve=ReserveTimes(60),
    )
    assert [o.instance for o in next(answers).victims] == ["x"]
    assert find(inventory, whole("s", 1)) is None
    answers.close()
    assert find(inventory, whole("s", 1)) is not None


def test_a_pass_ends_after_max_preemptions_and_the_next_goes_on() -> None:
    inventory = Fleet().add("a", [G80] * 4).inventory()
    on = running(inventory, *((whole(f"x{n}", 1), 10, 0) for n in range(4)))
    waiting = [PendingInstance(whole(f"p{n}", 1), 50, preempt=True) for n in range(3)]
    first = list(admit(inventory, waiting, Holders(tuple(on)), reserve=ReserveTimes(60), max_preemptions=2))
    inventory.rollback()
    assert [len(s.victims) for s in first] == [1, 1]
    leaving = {o for s in first for o in s.victims}
    waiting[:2] = [PendingInstance(w.ask, 50, preempt=True, preempting=True) for w in waiting[:2]]
    staying = tuple(o for o in on if o not in leaving)
    second = list(
        admit(inventory, waiting, Holders(staying, tuple(leaving)), reserve=ReserveTimes(60), max_preemptions=2)
    )
    assert [len(s.victims) for s in second] == [0, 0, 1]


def test_many_preemptors_are_decided_quickly() -> None:
    """That nothing can be preempted is found once per shape, from the priorities of the claims on each GPU."""
    fleet = Fleet()
    for n in range(200):
        fleet.add(f"w{n:03}", [G80] * 8)
    inventory = fleet.inventory()
    on = running(inventory, *((whole(f"x{n}", 1), n % 40, n) for n in range(1600)))
    waiting = [PendingInstance(whole(f"p{n}", 9), 90, preempt=True, waited_s=90) for n in range(2_000)]
    began = time.process_time()
    admitted = list(admit(inventory, waiting, Holders(tuple(on)), reserve=ReserveTimes(60)))
    assert time.process_time() - began < 3
    assert not any(s.victims for s in admitted)


def test_nothing_is_preempted_where_another_ahead_would_take_the_capacity() -> None:
    inventory = Fleet().add("a", [G80] * 2).inventory()
    on = running(inventory, (whole("x", 1), 10, 0), (whole("y", 1), 10, 1))
    mid, high = PendingInstance(whole("mid", 1), 50), PendingInstance(whole("hi", 1), 30, preempt=True)
    admitted = admit_all(inventory, Holders(tuple(on)), mid, high)
    assert admitted["hi"].victims == ()
    assert admitted["hi"].decision.explain.note == (
        "preempts nothing: mid is ahead in the queue and would take the freed capacity"
    )
    first = admit_all(inventory, Holders(tuple(on)), PendingInstance(whole("huge", 3), 50), high)
    assert [o.instance for o in first["hi"].victims] == ["y"], "the one ahead would not fit there either"
    higher = admit_all(inventory, Holders(tuple(on)), PendingInstance(whole("hi", 1), 60, preempt=True), mid)
    assert [o.instance for o in higher["hi"].victims] == ["y"]


def test_a_reservation_stays_for_an_instance_whose_place_relocations_free() -> None:
    inventory = Fleet().add("a", [G80]).add("b", [G80]).inventory()
    on = running(inventory, (whole("x", 1, on="a"), 10, 0), (whole("y", 1, on="b"), 10, 0))
    target = whole("p", 1, on="a")
    moved = PendingInstance(whole("p", 1), 10, relocation_target=target)
    admitted = admit_all(inventory, Holders(tuple(on), (), (on[0],)), moved)["p"]
    assert (admitted.reserved_on, admitted.victims) == (("a",), ())
    assert isinstance(admitted.decision, Unplaced)
    assert admitted.decision.explain.freeing
    assert admitted.decision.explain.note == "relocations free capacity for it on a"
    for gone in (Holders(tuple(on)), Holders(tuple(on), (), (on[1],))):
        other = admit_all(inventory, gone, moved)["p"]
        assert other.reserved_on == (), "its place is held by what does not move"
        assert isinstance(other.decision, Unplaced)
        assert not other.decision.explain.freeing


def test_one_that_is_not_created_yet_reserves_nothing_where_the_holders_are_unknown() -> None:
    inventory = Fleet().add("a", [G80]).inventory()
    running(inventory, (whole("x", 1), 10, 0))
    waiting = PendingInstance(whole("next", 1), 10, awaited=True), PendingInstance(whole("p", 1), 10)
    (only,) = admit(inventory, waiting, None)
    assert (only.decision.instance, only.reserved_on) == ("p", ())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"preempt": True}, True),
        ({"relocation_target": whole("p", 1)}, True),
        ({"promised": Destination(("a",), ("a/0",))}, True),
        ({"waited_s": 59.9}, False),
        ({"waited_s": 60.0}, True),
        ({"priority": 9, "reserved_s": 9.0}, False),
    ],
)
def test_holders_are_read_only_where_capacity_may_be_reserved(fields: dict[str, Any], expected: bool) -> None:
    assert may_reserve(PendingInstance(whole("p", 1), **fields), 60.0) is expected


def test_of_a_gang_s_host_one_group_is_enough() -> None:
    """Of GPUs of two models on one host either serves; the holder that may not be moved stays."""
    fleet = Fleet().add("a", [G80] * 2).add("b", [G80]).set("a/1", model="A")
    inventory = fleet.inventory()
    on = running(inventory, (whole("x", 1, on="a"), 10, 0), (whole("y", 1, on="a"), 10, 0))
    for stays, ends in ((0, "y"), (1, "x")):
        holders = [replace(one, movable=number != stays, lost_s=0.0 if number == stays else 9.0)
                   for number, one in enumerate(on)]  # fmt: skip
        assert victims_of(inventory, whole("p", 2, workers=2), holders) == [ends]


def test_a_promised_place_is_kept_until_its_victims_have_ended() -> None:
    inventory = Fleet().add("a", [G80]).add("b", [G80]).inventory()
    on = running(inventory, (whole("x", 1, on="a"), 10, 0), (whole("y", 1, on="b"), 10, 0))
    place_on_a = Destination(("a",), ("a/0",))
    for preempting in (True, False):
        first = PendingInstance(whole("p", 1), 50, preempt=True, preempting=preempting, promised=place_on_a)
        holders = Holders((on[1],), (on[0],))
        found = {
            one.decision.instance: one
            for one in admit(inventory, [first, PendingInstance(whole("q", 1), 50)], holders, promised=[first])
        }
        inventory.rollback()
        assert (found["p"].promised, found["p"].victims) == (place_on_a, ())
        assert reason(found["p"]) is (Reason.PREEMPTING if preempting else None)
        assert found["p"].reserved_on == ("a",)
        assert found["p"].after_victims is not None
        assert reason(found["q"]) is None or reason(found["q"]) is Reason.RESERVED
        assert found["q"].promised is None
