"""The time in which victims are chosen where many small holders are alike."""

import time

from controller.domain.admission import Holder, Holders, PendingInstance
from controller.domain.placement import Ask, Layout, Placed
from controller.scheduling.admission.admit import admit
from controller.scheduling.search.place import place
from support.builders.fleet import GIB, Fleet

_LIMIT_S = 4.0  # of CPU time; it took 0.4 s, and 25 s where each set was judged from the start


def test_gangs_among_many_small_holders_take_no_long_pass() -> None:
    fleet = Fleet()
    for number in range(100):
        fleet.add(f"h{number}", [80 * GIB] * 8)
    inventory = fleet.inventory()
    one = Layout(1, 80 * GIB, True)
    asks = [Ask(f"r-{n}", f"r{n}", (one,), strategy="pack") for n in range(800)]
    placed = [found for found in place(inventory, asks) if isinstance(found, Placed)]
    inventory.begin_pass()
    holders = [
        Holder(p.instance, (10, 20, 30)[n * 7 % 3], float(n), frozenset(p.workers), p.claims)
        for n, p in enumerate(placed)
    ]
    gang = Layout(32, 80 * GIB, True, workers=4, tp=8, pp=4)
    waiting = [PendingInstance(Ask(f"g-{n}", f"g{n}", (gang,), strategy="pack"), 50, preempt=True) for n in range(4)]
    began = time.process_time()
    answers = list(admit(inventory, waiting, Holders(tuple(holders)), max_preemptions=8))
    assert time.process_time() - began < _LIMIT_S
    assert [len(answer.victims) for answer in answers] == [32] * 4


def test_one_gpu_among_many_shared_ones_takes_no_long_pass() -> None:
    """Each of 800 GPUs is shared by four, and the places are all alike."""
    fleet = Fleet()
    for number in range(100):
        fleet.add(f"h{number}", [80 * GIB] * 8)
    inventory = fleet.inventory()
    small = Layout(1, 18 * GIB, False)
    asks = [Ask(f"r-{n}", f"r{n}", (small,), strategy="pack") for n in range(3200)]
    placed = [found for found in place(inventory, asks) if isinstance(found, Placed)]
    inventory.begin_pass()
    holders = tuple(Holder(p.instance, 10, float(n), frozenset(p.workers), p.claims) for n, p in enumerate(placed))
    large = Ask("g", "g", (Layout(1, 70 * GIB, False),), strategy="pack")
    began = time.process_time()
    answer = next(admit(inventory, [PendingInstance(large, 50, preempt=True)], Holders(holders)))
    assert time.process_time() - began < 0.5
    assert len(answer.victims) == 4
