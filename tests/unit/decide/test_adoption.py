"""What the ledger takes back after a loss of commits, case by case."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from controller.decide.adoption import plan_adoption
from controller.domain.adoption import AdoptionPlan, DeviceRoom, HeldClaim, OrphanProcess
from controller.domain.instances import DeploymentSnapshot, InstanceClaim, InstanceState
from controller.domain.placement import Layout, PlannedClaim
from controller.domain.rollouts import RolloutRecord, RolloutSnapshot
from controller.domain.start_receipts import StartReceipt
from support.builders.facts import NOW, deployment, instance, process, spec

MIB = 8


def found(
    name: str,
    *gpus: str,
    worker: str = "w1",
    mib: int = MIB,
    rank: int = 0,
    ranks: int = 1,
    state: str = "running",
    ready: bool = True,
    **fields: Any,
) -> OrphanProcess:
    """A process that runs on these GPUs of its worker."""
    claims = tuple(PlannedClaim(gpu, mib, 0, mib == MIB, n, rank) for n, gpu in enumerate(gpus))
    layout = Layout(ranks, 0, exclusive=False, workers=ranks)
    receipt = StartReceipt(worker, name, 2, rank, "d-uid", 1, NOW, "", layout, claims)
    return OrphanProcess(replace(receipt, **fields), worker, ready, {"state": state})


def held(name: str, phase: str, gpu: str, **fields: Any) -> InstanceState:
    """An instance of the ledger with one exclusive GPU."""
    return instance(name, phase, claims=(InstanceClaim(gpu, "w1", "gpu", 1, 0, MIB, 0, True, 0),), **fields)


def plan(*processes: OrphanProcess, facts: DeploymentSnapshot, reporting: tuple[str, ...] = ("w1",)) -> AdoptionPlan:
    """On the GPUs `a` to `d` of w1 and `z` of w2, with the claims of the deployment's instances."""
    claims: dict[str, list[HeldClaim]] = {}
    for one in facts.instances:
        for claim in one.claims:
            claims.setdefault(claim.device, []).append(HeldClaim(one.id, claim.memory_mib, 0, claim.exclusive))
    rooms = {
        gpu: DeviceRoom("w2" if gpu == "z" else "w1", True, True, MIB, 0, 0, tuple(claims.get(gpu, ())))
        for gpu in "abcdz"
    }
    owners = {i.id: facts.uid for i in facts.instances}
    return plan_adoption(processes, {facts.uid: facts}, rooms, owners=owners, reporting=reporting)


def adopted(made: AdoptionPlan) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The phase of each adopted instance, and those that it removes."""
    return {one.receipt.instance: (one.phase.value, one.removed) for one in made.adopted}


def refused(made: AdoptionPlan) -> dict[str, str]:
    return {one.ranks[0].receipt.instance: one.why for one in made.refused}


@pytest.mark.parametrize(
    ("processes", "fields", "why"),
    [
        ((found("n", "a", deployment_uid="other"),), {}, "does not exist"),
        ((found("n", "a"),), {"deleted_at": NOW}, "does not exist"),
        ((found("n", "a", revision=9),), {}, "another specification"),
        ((found("n", "a", ranks=2),), {}, "not all of its processes run"),
        ((found("n", "a", rank=1, ranks=2),), {}, "not all of its processes run"),
        ((found("n", "a", ranks=2), found("n", "b", rank=1, ranks=2)), {}, "two of its processes are on one worker"),
        ((found("n", "a", state="stopping"),), {}, "it is stopping"),
        ((found("n", "z"),), {}, "its device z is not on its worker any more"),
        ((found("n", "gone"),), {}, "its device gone is not on its worker any more"),
        ((found("n", "a"),), {"spec": spec(replicas=0)}, "no further replica is wanted"),
    ],
)
def test_a_start_that_is_not_taken_back_has_its_reason(
    processes: tuple[OrphanProcess, ...], fields: dict[str, Any], why: str
) -> None:
    made = plan(*processes, facts=deployment(**fields))
    assert (made.adopted, len(made.refused)) == ((), 1)
    assert why in made.refused[0].why


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (held("n", "failed", "a"), "it is failed"),
        (held("n", "succeeded", "a"), "it is succeeded"),
        (held("n", "stopping", "a"), "it is stopping"),
        (held("n", "replaced", "a"), "it is replaced"),
        (held("n", "running", "a", epoch=2), "the ledger has a later start of it"),
        (held("n", "running", "a", epoch=3), "the ledger has a later start of it"),
        (held("n", "running", "a", processes=(process("running"),)), "another start of it runs"),
    ],
)
def test_a_later_state_of_the_ledger_counts(known: InstanceState, why: str) -> None:
    made = plan(found("n", "b"), facts=deployment(known))
    assert refused(made) == {"n": why}


@pytest.mark.parametrize(
    ("known", "reporting"),
    [
        (held("n", "running", "a"), ("w1",)),
        (held("n", "running", "a", processes=(process("exited"),)), ("w1",)),
        (held("n", "running", "a", processes=(process("running"),)), ()),  # a higher epoch proves its end
        (instance("n", "pending"), ("w1",)),
    ],
)
def test_an_earlier_state_of_the_ledger_is_replaced(known: InstanceState, reporting: tuple[str, ...]) -> None:
    made = plan(found("n", "b"), facts=deployment(known), reporting=reporting)
    assert adopted(made) == {"n": ("running", ())}
    assert made.adopted[0].before == known


def test_a_name_of_another_deployment_is_not_taken() -> None:
    one = found("n", "a")
    made = plan_adoption([one], {"d-uid": deployment()}, {}, owners={"n": "other"}, reporting=("w1",))
    assert refused(made) == {"n": "its name is another deployment's"}


@pytest.mark.parametrize(
    ("states", "phase"),
    [
        (("running", "running"), "running"),
        (("running", "starting"), "starting"),
        (("unhealthy", "running"), "unhealthy"),
        (("starting", "unhealthy"), "starting"),
    ],
)
def test_a_gang_is_as_far_as_its_slowest_rank(states: tuple[str, str], phase: str) -> None:
    ranks = (
        found("n", "z", worker="w2", rank=1, ranks=2, state=states[1]),
        found("n", "a", rank=0, ranks=2, state=states[0]),
    )
    made = plan(*ranks, facts=deployment())
    assert adopted(made) == {"n": (phase, ())}
    assert [one.receipt.rank for one in made.adopted[0].ranks] == [0, 1]


def test_processes_of_workers_that_are_not_ready_are_undecided() -> None:
    gang = (found("n", "a", ranks=2), found("n", "z", worker="w2", rank=1, ranks=2, ready=False))
    made = plan(*gang, found("m", "b"), facts=deployment(spec=spec(replicas=2)))
    assert (adopted(made), refused(made), made.undecided) == ({"m": ("running", ())}, {}, 2)


def test_what_was_taken_back_holds_its_gpu() -> None:
    made = plan(found("n", "a"), found("m", "a"), facts=deployment(spec=spec(replicas=2)))
    assert list(adopted(made)) == ["m"]
    assert refused(made) == {"n": "its device a cannot be used or is held by others"}


def test_every_rank_of_what_was_taken_back_holds_its_gpu() -> None:
    gang = (found("g", "a", ranks=2), found("g", "z", worker="w2", rank=1, ranks=2))
    made = plan(*gang, found("n", "z", worker="w2"), facts=deployment(spec=spec(replicas=2)))
    assert list(adopted(made)) == ["g"]
    assert refused(made) == {"n": "its device z cannot be used or is held by others"}


def test_only_the_latest_start_of_an_instance_is_taken_back() -> None:
    made = plan(found("n", "a"), found("n", "b", epoch=3), facts=deployment(spec=spec(replicas=3)))
    assert [one.receipt.epoch for one in made.adopted] == [3]
    assert refused(made) == {"n": "a later start of it runs"}


def test_what_runs_comes_before_what_starts_and_the_oldest_first() -> None:
    old, new = {"created_at": NOW - timedelta(seconds=9)}, {"created_at": NOW}
    starts = found("a-starts", "a", state="starting", **old)
    made = plan(starts, found("b-new", "b", **new), found("c-old", "c", **old), facts=deployment(spec=spec(replicas=2)))
    assert list(adopted(made)) == ["c-old", "b-new"]
    known = deployment(instance("z-known", "pending"), spec=spec(replicas=2))
    made = plan(starts, found("b-new", "b", **new), found("z-known", "c", state="starting", **new), facts=known)
    assert list(adopted(made)) == ["z-known", "b-new"]


@pytest.mark.parametrize(
    ("others", "removed"),
    [
        ((instance("p", "pending"),), ("p",)),
        ((instance("p", "analyzing"), held("r", "running", "b")), ("p",)),  # one without claims goes first
        ((held("r", "running", "b"), held("s", "running", "a")), ("s",)),  # then the holder of its GPU
        ((held("r", "running", "c"), held("s", "running", "b")), ("r",)),
        ((held("r", "stopping", "b"),), ()),  # it does not count as a replica
        ((held("r", "stopping", "a"),), ("r",)),  # but it holds the GPU
        ((held("r", "replaced", "a"),), ("r",)),
    ],
)
def test_replicas_of_which_nothing_runs_give_way(others: tuple[InstanceState, ...], removed: tuple[str, ...]) -> None:
    counted = sum(i.phase.value not in ("stopping", "replaced") for i in others)
    made = plan(found("n", "a"), facts=deployment(*others, spec=spec(replicas=max(counted, 1))))
    assert adopted(made) == {"n": ("running", removed)}


@pytest.mark.parametrize(
    ("other", "reporting", "restart"),
    [
        (held("r", "running", "b"), (), "always"),  # its worker's agent has not reported
        (held("r", "running", "b", processes=(process("running"),)), ("w1",), "always"),
        (held("r", "running", "b"), ("w1",), "on_failure"),  # it may have done its work
        (held("r", "pending", "b"), ("w1",), "always"),  # it has got a place
        (instance("r", "failed"), ("w1",), "always"),
    ],
)
def test_no_replica_gives_way_that_may_run_or_count(
    other: InstanceState, reporting: tuple[str, ...], restart: str
) -> None:
    made = plan(found("n", "a"), facts=deployment(other, spec=spec(restart=restart)), reporting=reporting)
    assert refused(made) == {"n": "no further replica is wanted"}


def test_each_replica_gives_way_once() -> None:
    facts = deployment(instance("p", "pending"), held("r", "running", "d"), spec=spec(replicas=2))
    made = plan(found("k", "a"), found("m", "b"), found("n", "c"), facts=facts)
    assert adopted(made) == {"k": ("running", ("p",)), "m": ("running", ("r",))}
    assert refused(made) == {"n": "no further replica is wanted"}


def test_a_removed_replica_frees_its_gpu_and_its_place() -> None:
    facts = deployment(held("r", "running", "a"), held("s", "running", "b"), spec=spec(replicas=2))
    made = plan(found("m", "a", "b"), found("n", "c"), facts=facts)
    assert adopted(made) == {"m": ("running", ("r", "s")), "n": ("running", ())}


def test_a_replica_in_whose_place_another_runs_is_not_taken_back() -> None:
    facts = deployment(held("r", "running", "a"), instance("s", "pending"), spec=spec(replicas=2))
    made = plan(found("s", "a"), found("r", "b", created_at=NOW + timedelta(seconds=1)), facts=facts)
    assert adopted(made) == {"s": ("running", ("r",))}
    assert refused(made) == {"r": "another replica runs in its place"}


def test_a_gpu_that_is_freed_later_is_tried_again() -> None:
    facts = deployment(held("r", "running", "a"), spec=spec(replicas=2))
    one = found("q", "a", created_at=NOW - timedelta(seconds=9))
    blocked = plan(one, facts=facts, reporting=())
    assert refused(blocked) == {"q": "its device a cannot be used or is held by others"}
    freed = plan(one, found("r", "b"), facts=facts, reporting=())
    assert adopted(freed) == {"r": ("running", ()), "q": ("running", ())}


@pytest.mark.parametrize(("stable", "holds", "taken"), [(1, True, True), (1, False, False), (3, True, False)])
def test_the_revision_to_which_a_rollout_goes_back_is_wanted(stable: int, holds: bool, taken: bool) -> None:
    record = RolloutRecord(2, stable, holds=holds)
    made = plan(found("n", "a"), facts=deployment(revision=2, rollout=RolloutSnapshot(record)))
    assert bool(made.adopted) is taken
    assert bool(plan(found("n", "a", revision=2), facts=deployment(revision=2)).adopted)
