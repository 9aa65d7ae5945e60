"""What is drained for an instance is kept for it: no second drain, whatever else is pending and ends first."""

from random import Random

import pytest

from controller.domain.admission import PendingInstance
from controller.domain.placement import Ask, Layout
from support.admission_rounds import AGE_S, Rounds, play, start
from support.builders.fleet import GIB, Fleet
from support.profiles import PROFILE

SCENES = {"short": 120, "full": 300}.get(PROFILE, 20_000)
BLOCKS = 6
G80 = 80 * GIB
LAYOUTS = (
    *(Layout(gpus, 0, True) for gpus in (1, 1, 1, 2, 4)),
    *(Layout(1, gib * GIB, False) for gib in (20, 40, 60)),
    Layout(2, 0, True, workers=2),
    Layout(2, 40 * GIB, False, workers=2),
)


def whole(instance: str, gpus: int = 1, *, on: str = "", workers: int = 1) -> Ask:
    return Ask(instance, f"d-{instance}", (Layout(gpus, 0, True, workers),), workers=(on,) if on else ())


def chance(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - scenes, no secret


def scene(seed: int) -> tuple[Rounds, Random]:
    """A full fleet, and a queue of which a half preempts."""
    some = chance(seed)
    fleet = Fleet()
    for number in range(some.randint(1, 5)):
        fleet.add(f"w{number}", [G80] * some.choice((1, 2, 4)))
    running = [
        (Ask(f"r{n}", f"d{n}", (some.choice(LAYOUTS),)), some.choice((0, 10, 20))) for n in range(some.randint(1, 14))
    ]
    waiting = [
        PendingInstance(
            Ask(f"q{n}", f"e{n}", (some.choice(LAYOUTS),)),
            some.choice((10, 30, 30, 50)),
            preempt=some.random() < 0.5,
            waited_s=some.choice((0.0, AGE_S)),
            queued_at=some.uniform(1_000, 2_000),
        )
        for n in range(some.randint(1, 7))
    ]
    return start(fleet.inventory(), running, waiting), some


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_instance_is_drained_in_vain(block: int) -> None:
    """An instance preempts again only where an instance of a higher priority took its place; nothing else takes it."""
    preemptions = 0
    for seed in range(block * SCENES // BLOCKS, (block + 1) * SCENES // BLOCKS):
        rounds, some = scene(seed)
        play(rounds, some, 12)
        assert rounds.thefts == [], seed
        first: dict[str, frozenset[str]] = {}
        for one in rounds.preempted:
            name = one.preemptor.ask.instance
            if name in first:
                higher = [other for other, _ in rounds.started if other.priority > one.preemptor.priority]
                assert higher, f"seed {seed}: {name} preempts twice"
            first[name] = one.devices
        preemptions += len(rounds.preempted)
    assert preemptions > SCENES // BLOCKS // 4, "too few scenes in which anything is preempted"


@pytest.mark.parametrize("block", range(BLOCKS))
def test_without_higher_priorities_each_gets_the_place_that_was_drained_for_it(block: int) -> None:
    """All that is pending has one priority: each preempts once, and starts there, or elsewhere before that."""
    preemptions = 0
    for seed in range(block * SCENES // BLOCKS, (block + 1) * SCENES // BLOCKS):
        rounds, some = scene(seed)
        rounds.waiting = [
            PendingInstance(one.ask, 50, preempt=one.preempt, waited_s=one.waited_s, queued_at=one.queued_at)
            for one in rounds.waiting
        ]
        play(rounds, some, 16)
        drained_for = {one.preemptor.ask.instance: one.devices for one in rounds.preempted}
        assert len(drained_for) == len(rounds.preempted), f"seed {seed}: one preempts twice"
        on = {one.ask.instance: placed for one, placed in rounds.started}
        for name, devices in drained_for.items():
            assert name in on, f"seed {seed}: {name} does not start"
            taken = {claim.device for claim in on[name].claims} & set(rounds.inventory.gpus.uuid)
            assert taken == devices or name in rounds.sooner, f"seed {seed}: {name} starts elsewhere"
        preemptions += len(drained_for)
    assert preemptions > SCENES // BLOCKS // 4


def two_gpus(*waiting: PendingInstance) -> Rounds:
    """A GPU with `t` and one with `s`."""
    fleet = Fleet().add("a", [G80]).add("b", [G80])
    return start(fleet.inventory(), [(whole("t", on="a"), 10), (whole("s", on="b"), 10)], waiting)


def test_an_older_one_of_equal_priority_does_not_take_what_is_drained_for_another() -> None:
    older = PendingInstance(whole("w"), 50, waited_s=AGE_S, queued_at=1.0)
    rounds = two_gpus(older, PendingInstance(whole("p"), 50, preempt=True, queued_at=2.0))
    play(rounds, chance(1), 10)
    (preempted,) = rounds.preempted
    assert len(preempted.victims) == 1
    assert [one.ask.instance for one, _ in rounds.started] == ["p"]
    assert "w" in {one.ask.instance for one in rounds.waiting}


@pytest.mark.parametrize("seed", range(8))
def test_a_higher_priority_takes_the_place_and_the_preemptor_the_next_that_drains(seed: int) -> None:
    """Each of three needs one GPU, so three victims suffice whatever arrives while they drain."""
    fleet = Fleet()
    for name in "abcd":
        fleet.add(name, [G80])
    running = [(whole(f"r-{name}", on=name), 10) for name in "abcd"]
    waiting = [PendingInstance(whole(f"p{n}"), 50, preempt=True, queued_at=float(n)) for n in range(2)]
    rounds = start(fleet.inventory(), running, waiting)
    rounds.run_pass()
    rounds.waiting += [PendingInstance(whole("high"), 60, preempt=True, queued_at=9.0)]
    rounds.waiting += [PendingInstance(whole("equal"), 50, waited_s=AGE_S, queued_at=-9.0)]
    play(rounds, chance(seed), 20)
    assert sorted(one.ask.instance for one, _ in rounds.started) == ["high", "p0", "p1"]
    assert sum(len(one.victims) for one in rounds.preempted) == 3


def test_a_place_of_several_gpus_is_kept_while_its_victims_end_one_by_one() -> None:
    fleet = Fleet().add("a", [G80] * 2)
    running = [(whole("r0"), 10), (whole("r1"), 10)]
    rounds = start(fleet.inventory(), running, [PendingInstance(whole("pair", 2), 50, preempt=True, queued_at=5.0)])
    rounds.run_pass()
    rounds.waiting.append(PendingInstance(whole("older"), 50, queued_at=1.0))
    for name in ("r1", "r0"):
        rounds.inventory.exclude(rounds.leaving.pop(name).claims)
        rounds.inventory.remove_load([name])
        rounds.run_pass()
    assert [one.ask.instance for one, _ in rounds.started] == ["pair"]


def test_two_promised_shares_of_one_gpu_both_fit() -> None:
    """What one victim leaves is counted once, so that a third instance does not take the rest."""
    fleet = Fleet().add("a", [G80])

    def share(instance: str, gib: int) -> Ask:
        return Ask(instance, f"d-{instance}", (Layout(1, gib * GIB, False),))

    waiting = [PendingInstance(share(f"p{n}", 40), 50, preempt=True, queued_at=float(n)) for n in range(2)]
    rounds = start(fleet.inventory(), [(share("r", 60), 10)], waiting)
    rounds.run_pass()
    rounds.waiting.append(PendingInstance(share("small", 20), 40, queued_at=0.0))
    play(rounds, chance(3), 10)
    assert sorted(one.ask.instance for one, _ in rounds.started) == ["p0", "p1"]
