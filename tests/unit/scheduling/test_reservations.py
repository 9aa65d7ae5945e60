"""Reservations: only against what ends, else for a bounded time; what they leave free, and what others are told."""

import time
from dataclasses import replace

import pytest

from controller.domain.admission import Holder, Holders, PendingInstance
from controller.domain.placement import Ask, Layout, Placed, PlannedClaim, Unplaced
from controller.scheduling.admission.admit import AdmissionDecision, ReserveTimes, admit
from schemas.placement_reasons import Reason
from support.builders.fleet import GIB, Fleet

G80 = 80 * GIB
TIMES = ReserveTimes(60, 3600)


def held(fleet: Fleet, name: str, gib: int, gpu: str, *, priority: int = 10, task: bool = False) -> Holder:
    fleet.claim(gpu, gib * GIB)
    worker = gpu.partition("/")[0]
    claims = (PlannedClaim(gpu, gib * GIB, 0, False, 0), PlannedClaim(f"host-{worker}", 0, 0, False, 0))
    return Holder(name, priority, 0.0, frozenset({f"id-{worker}"}), claims, task=task)


def pending(name: str, gib: int, gpus: int = 1, **more: object) -> PendingInstance:
    ask = Ask(name, f"d-{name}", (Layout(gpus, gib * GIB, False),))
    return replace(PendingInstance(ask, 10), **more)  # type: ignore[arg-type] # fields


def decide(fleet: Fleet, holders: Holders, *waiting: PendingInstance) -> dict[str, AdmissionDecision]:
    inventory = fleet.inventory()
    before = inventory.gpus.free.tolist()
    found = {one.decision.instance: one for one in admit(inventory, waiting, holders, reserve=TIMES)}
    inventory.rollback()
    assert inventory.gpus.free.tolist() == before
    return found


def fits(found: AdmissionDecision) -> bool:
    return isinstance(found.decision, Placed)


LONG = 7200.0


@pytest.mark.parametrize(
    ("task", "reserved_s", "reserved"),
    [(True, None, True), (True, 1e6, True), (False, None, True), (False, 3599.0, True), (False, 3600.0, False)],
)
def test_capacity_that_servers_hold_is_reserved_for_a_bounded_time(
    task: bool, reserved_s: float | None, reserved: bool
) -> None:
    fleet = Fleet().add("a", [G80] * 2)
    holders = Holders((held(fleet, "x", 80, "a/0", task=task),))
    big = pending("big", 80, 2, waited_s=LONG, reserved_s=reserved_s)
    found = decide(fleet, holders, big, pending("small", 80))
    assert fits(found["small"]) is not reserved
    assert found["big"].awaits_servers is (reserved and not task)
    assert found["big"].reserved_on == (("a",) if reserved else ())
    assert found["small"].reserved_on == ()


def test_after_its_time_the_next_one_has_its_turn() -> None:
    fleet = Fleet().add("a", [G80] * 2).add("b", [G80] * 3)
    servers = [held(fleet, "x", 80, "a/0"), held(fleet, "y", 80, "b/0"), held(fleet, "z", 80, "b/1")]
    first = pending("first", 80, 3, waited_s=LONG, reserved_s=3600.0)
    second = pending("second", 80, 2, waited_s=LONG)
    found = decide(fleet, Holders(tuple(servers)), first, second)
    assert (found["first"].awaits_servers, found["second"].awaits_servers) == (False, True)
    assert isinstance(found["first"].decision, Unplaced)
    assert "no longer reserved for it after 1 h" in found["first"].decision.explain.message


@pytest.mark.parametrize("kind", ["leaving", "relocating"])
def test_what_ends_by_itself_is_awaited_however_long(kind: str) -> None:
    fleet = Fleet().add("a", [G80] * 2)
    one = held(fleet, "x", 80, "a/0")
    holders = Holders((), (one,)) if kind == "leaving" else Holders((one,), (), (one,))
    big = pending("big", 80, 2, waited_s=LONG, reserved_s=1e6)
    found = decide(fleet, holders, big, pending("small", 80))
    assert (fits(found["small"]), found["big"].awaits_servers) == (False, False)


def test_a_place_for_which_tasks_end_is_preferred_to_one_for_which_fewer_servers_would() -> None:
    fleet = Fleet().add("a", [G80] * 2).add("b", [G80] * 2)
    holders = [held(fleet, "s", 80, "a/0")] + [held(fleet, f"t{n}", 40, "b/0", task=True) for n in range(2)]
    found = decide(fleet, Holders(tuple(holders)), pending("big", 80, 2, waited_s=LONG), pending("small", 80))
    assert isinstance(found["big"].decision, Unplaced)
    assert "reserved for it on b" in found["big"].decision.explain.message
    assert found["small"].decision.worker_id == "id-a"  # type: ignore[union-attr] # it fits


@pytest.mark.parametrize(("gib", "free"), [(20, True), (30, True), (31, False)])
def test_what_is_left_beside_the_victim_and_the_preemptor_stays_free(gib: int, free: bool) -> None:
    """The victim holds 50 of 80 GiB, and the preemptor needs 40: 30 GiB are free now, and later 40."""
    fleet = Fleet().add("a", [G80])
    victim = held(fleet, "x", 50, "a/0")
    preemptor = pending("p", 40, priority=50, preempt=True)
    for holders in (Holders((victim,)), Holders((), (victim,))):
        assert fits(decide(fleet, holders, preemptor, pending("s", gib))["s"]) is free


def test_what_the_preemptor_needs_beyond_the_victim_is_reserved() -> None:
    """The victim holds 30 of 80 GiB, and the preemptor needs 60: of the 50 GiB that are free, 20 stay free."""
    fleet = Fleet().add("a", [G80])
    victim = held(fleet, "x", 30, "a/0")
    preemptor = pending("p", 60, priority=50, preempt=True)
    found = decide(fleet, Holders((victim,)), preemptor, pending("s", 21), pending("t", 20), pending("u", 1))
    assert [fits(found[name]) for name in "stu"] == [False, True, False]


def test_two_preemptors_do_not_share_what_one_victim_frees() -> None:
    fleet = Fleet().add("a", [G80])
    victim = held(fleet, "x", 60, "a/0")
    found = decide(
        fleet,
        Holders((), (victim,)),
        pending("p", 50, priority=50, preempt=True),
        pending("q", 50, priority=50, preempt=True),
        pending("r", 30, priority=50, preempt=True),
    )
    notes = {name: one.decision.explain.note for name, one in found.items() if isinstance(one.decision, Unplaced)}
    assert notes["p"] == notes["r"] == "capacity is being freed for it on a"
    assert "freed" not in notes["q"]
    freeing = {name for name, one in found.items() if one.decision.explain.freeing}  # type: ignore[union-attr]
    assert freeing == {"p", "r"}


def test_a_nearest_miss_counts_reserved_capacity_as_free_or_says_that_it_is_reserved() -> None:
    fleet = Fleet().add("a", [G80] * 2)
    holders = Holders((held(fleet, "x", 80, "a/0", task=True),))
    big = pending("big", 80, 2, waited_s=LONG)
    found = decide(fleet, holders, big, pending("fits", 70), pending("large", 90))
    one, large = found["fits"].decision, found["large"].decision
    assert isinstance(one, Unplaced)
    assert isinstance(large, Unplaced)
    assert one.reason == Reason.RESERVED
    assert one.explain.nearest is not None
    assert (one.explain.nearest.code, one.explain.nearest.worker) == ("reserved", "a")
    assert "big on a" in one.explain.message
    pair = decide(fleet, holders, big, pending("pair", 60, 2))["pair"].decision
    assert isinstance(pair, Unplaced)
    assert pair.explain.nearest is not None
    assert (pair.reason, pair.explain.nearest.free_gib) == (None, 0.0), "the GPU of the task, not the reserved one"
    assert pair.explain.message.count("80") == 0


@pytest.mark.parametrize("low", [{"priority": 5}, {"priority": 10}])
@pytest.mark.parametrize("waited_s", [0.0, LONG])
def test_nothing_behind_it_takes_what_the_first_could_have_with_what_ends_already(
    low: dict[str, int], waited_s: float
) -> None:
    """Two whole GPUs of `a` once `x` has ended; `b` stays free for what comes after it."""
    fleet = Fleet().add("a", [G80] * 2).add("b", [G80])
    leaving = held(fleet, "x", 80, "a/0")
    first = pending("first", 80, 2, waited_s=waited_s)
    found = decide(fleet, Holders((), (leaving,)), first, pending("s", 30, **low), pending("t", 60, **low))
    assert isinstance(found["first"].decision, Unplaced)
    assert found["first"].decision.explain.note == "capacity is being freed for it on a"
    assert found["s"].decision.worker_id == "id-b"  # type: ignore[union-attr] # it fits
    assert isinstance(found["t"].decision, Unplaced)
    assert found["t"].decision.reason == Reason.RESERVED


def test_what_would_not_fit_after_the_ends_reserves_nothing_at_once() -> None:
    fleet = Fleet().add("a", [G80] * 2)
    leaving = held(fleet, "x", 40, "a/0")
    staying = held(fleet, "y", 40, "a/0")
    found = decide(fleet, Holders((staying,), (leaving,)), pending("first", 80, 2), pending("s", 80))
    assert fits(found["s"])


def test_many_pending_and_ending_ones_are_decided_quickly() -> None:
    fleet = Fleet()
    leaving = []
    for n in range(100):
        fleet.add(f"w{n:03}", [G80] * 8)
        leaving += [held(fleet, f"x{n}-{gpu}", 80, f"w{n:03}/{gpu}") for gpu in range(8)]
    inventory = fleet.inventory()
    waiting = [pending(f"p{n}", 80) for n in range(500)]
    began = time.process_time()
    assert len(list(admit(inventory, waiting, Holders((), tuple(leaving)), reserve=TIMES))) == 500
    assert time.process_time() - began < 5


@pytest.mark.parametrize(("priority", "blocked"), [(5, True), (20, False)])
def test_a_successor_that_is_not_created_yet_keeps_its_turn(priority: int, blocked: bool) -> None:
    """No decision on it is given."""
    fleet = Fleet().add("a", [G80] * 2)
    leaving = held(fleet, "x", 80, "a/0")
    awaited = pending("successor", 80, 2, awaited=True)
    other = pending("s", 80, priority=priority)
    found = decide(fleet, Holders((), (leaving,)), *((awaited, other) if blocked else (other, awaited)))
    assert set(found) == {"s"}
    assert fits(found["s"]) is not blocked


@pytest.mark.parametrize("serves", [True, False])
def test_a_server_is_not_awaited_for_ever_whatever_its_restart(serves: bool) -> None:
    fleet = Fleet().add("a", [G80] * 2)
    holders = Holders((replace(held(fleet, "x", 80, "a/0", task=True), serves=serves),))
    for reserved_s, reserved in ((None, True), (3600.0, not serves)):
        big = pending("big", 80, 2, waited_s=LONG, reserved_s=reserved_s)
        found = decide(fleet, holders, big, pending("small", 80))
        assert fits(found["small"]) is not reserved
        assert found["big"].awaits_servers is (serves and reserved)


@pytest.mark.parametrize("holders", [None, Holders(())])
def test_capacity_is_reserved_before_any_placement_where_the_ask_fits(holders: Holders | None) -> None:
    fleet = Fleet().add("a", [G80])
    first = [pending("too-large", 90).ask, pending("soon", 60).ask]
    inventory = fleet.inventory()
    before = inventory.gpus.free.tolist()
    waiting = [pending("large", 40), pending("small", 20)]
    found = {one.decision.instance: one for one in admit(inventory, waiting, holders, reserve=TIMES, reserved=first)}
    assert (fits(found["large"]), fits(found["small"])) == (False, True)
    large = found["large"].decision
    assert isinstance(large, Unplaced)
    assert large.reason == Reason.RESERVED
    inventory.rollback()
    assert inventory.gpus.free.tolist() == before


@pytest.mark.parametrize(("for_s", "text"), [(45, "45 s"), (90, "1.5 min"), (7_200, "2 h")])
def test_the_time_of_a_reservation_is_given_in_its_note(for_s: float, text: str) -> None:
    fleet = Fleet().add("a", [G80])
    holders = Holders((held(fleet, "x", 80, "a/0"),))
    big = pending("big", 80, waited_s=LONG)
    (found,) = admit(fleet.inventory(), [big], holders, reserve=ReserveTimes(60, for_s))
    assert isinstance(found.decision, Unplaced)
    assert f" {text}" in found.decision.explain.note
