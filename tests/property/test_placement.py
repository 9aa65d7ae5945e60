"""Properties of placement on any fleet with any asks."""

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.admission import InstanceLoad
from controller.domain.placement import Ask, Decision, Placed, Unplaced
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search import candidates
from controller.scheduling.search.place import place
from support.builders.fleet import Fleet, gpus_of
from support.builders.random_fleets import asks, fleets
from support.profiles import examples


@given(fleets(), asks())
@examples()
def test_no_overcommit_and_exclusive_claims_are_alone(fleet: Fleet, wanted: list[Ask]) -> None:
    claimed = {d.uuid: d.claimed_mib for d in fleet.devices.values()}
    cpu = {d.uuid: d.claimed_cpu_milli for d in fleet.devices.values()}
    claims = {d.uuid: d.claims for d in fleet.devices.values()}
    exclusive = {d.uuid: d.exclusive_claims for d in fleet.devices.values()}
    for ask, decision in zip(wanted, place(fleet.inventory(), wanted), strict=True):
        if isinstance(decision, Unplaced):
            continue
        workers = [next(w for w in fleet.workers.values() if w.id == worker) for worker in decision.workers]
        assert len(set(decision.workers)) == len(workers) == decision.layout.workers
        assert all(worker.ready and worker.schedulable for worker in workers)
        gpus = gpus_of(decision)
        assert len(set(gpus)) == len(gpus) == decision.layout.gpus
        assert decision.layout in ask.layouts
        assert len({fleet.devices[uuid].vendor for uuid in gpus}) <= 1
        for rank in range(len(workers)):
            own = decision.of_rank(rank)
            assert [c.position for c in own] == list(range(len(own)))
            assert (ask.gpus and ask.all_gpus) or len(own) - 1 == decision.layout.gpus // len(workers)
        for claim in decision.claims:
            device = fleet.devices[claim.device]
            assert device.worker_id == decision.workers[claim.rank]
            assert device.healthy
            assert not device.mig_mode
            if device.kind == "gpu":
                assert device.memory_mib >= ask.min_gpu_mib
                assert not ask.gpu_models or device.model == "H"
                assert all(bound.allows(device.compute_capability) for bound in ask.capability_bounds)
            assert not claim.exclusive or claim.memory_mib == device.memory_mib
            claimed[claim.device] += claim.memory_mib
            cpu[claim.device] += claim.cpu_milli
            claims[claim.device] += 1
            exclusive[claim.device] += claim.exclusive
            if device.kind == "gpu":
                kept = 0 if claim.exclusive else device.reserved_mib + device.foreign_mib
                assert claimed[claim.device] <= device.memory_mib - kept
                assert not exclusive[claim.device] or claims[claim.device] == 1
            else:
                assert claimed[claim.device] <= device.memory_mib
                assert cpu[claim.device] <= device.cpu_milli


@given(fleets(), asks(), st.integers(0, 2**16))
@examples()
def test_the_order_of_rows_changes_nothing(fleet: Fleet, wanted: list[Ask], seed: int) -> None:
    assert place(fleet.inventory(), wanted) == place(fleet.inventory(shuffle=seed), wanted)


@given(fleets(), asks(), st.lists(st.tuples(st.sampled_from("de"), st.integers(0, 3), st.integers(0, 3)), max_size=8))
@examples()
def test_one_batch_decides_as_single_asks(fleet: Fleet, wanted: list[Ask], running: list[tuple[str, int, int]]) -> None:
    loads = [
        InstanceLoad(f"r{n}", uid, (f"id-w{w}",), (f"w{w}/{g}",)) for n, (uid, w, g) in enumerate(running)
    ]  # some on removed workers and GPUs
    together, single = fleet.inventory(), fleet.inventory()
    together.upsert_load(loads)
    single.upsert_load(loads)
    assert place(together, wanted) == [place(single, [ask])[0] for ask in wanted]


@given(fleets(), asks())
@examples()
def test_manual_and_automatic_selection_agree(fleet: Fleet, wanted: list[Ask]) -> None:
    ask = wanted[0]
    automatic = place(fleet.inventory(), [ask])[0]
    if isinstance(automatic, Placed):
        names = tuple(worker.removeprefix("id-") for worker in automatic.workers)
        gpus, all_gpus = tuple(gpus_of(automatic)) or ask.gpus, automatic.layout.gpus > 0
        named = replace(ask, gpus=gpus, layouts=(automatic.layout,), all_gpus=all_gpus, all_workers=False)
        assert place(fleet.inventory(), [replace(ask, workers=tuple({*ask.workers, *names}))])[0] == automatic
        assert place(fleet.inventory(), [named])[0] == automatic
        assert place(fleet.inventory(), [replace(named, all_gpus=False)])[0] == automatic
        return
    for name in fleet.workers:  # what does not fit automatically does not fit by naming it
        if not ask.workers and not ask.gpus:
            assert isinstance(place(fleet.inventory(), [replace(ask, workers=(name,))])[0], Unplaced)
    for device in fleet.devices.values():
        if device.kind == "gpu" and not ask.gpus:
            assert isinstance(place(fleet.inventory(), [replace(ask, gpus=(device.uuid,))])[0], Unplaced)


@given(fleets(), asks())
@examples()
def test_a_worker_named_by_hand_is_rejected_for_the_same_reason(fleet: Fleet, wanted: list[Ask]) -> None:
    """On a fleet of one worker, naming it or all of its GPUs gives the automatic decision."""
    for name in list(fleet.workers)[1:]:
        del fleet.workers[name]
    fleet.devices = {u: d for u, d in fleet.devices.items() if d.worker_id.removeprefix("id-") in fleet.workers}
    for asked in wanted:
        ask = replace(asked, workers=(), gpus=())
        automatic = place(fleet.inventory(), [ask])[0]
        for name in fleet.workers:
            by_name = place(fleet.inventory(), [replace(ask, workers=(name,))])[0]
            assert by_name == automatic
        gpus = [d for d in fleet.devices.values() if d.kind == "gpu"]
        # An instance may have GPUs of several kinds where a user names each of them, and by itself it may not.
        alike = len({(d.vendor, d.model, d.memory_mib, d.compute_capability) for d in gpus}) == 1
        if alike and all(one.gpus == len(gpus) and one.workers == 1 for one in ask.layouts):
            named = replace(ask, gpus=tuple(d.uuid for d in gpus), all_gpus=True)
            assert place(fleet.inventory(), [named])[0] == automatic


@given(fleets(), asks())
@examples()
def test_every_worker_has_one_reason(fleet: Fleet, wanted: list[Ask]) -> None:
    for decision in place(fleet.inventory(), wanted):
        if isinstance(decision, Unplaced):
            explain = decision.explain
            assert explain.fit == 0
            assert sum(explain.rejected.values()) == explain.workers >= len(fleet.workers)
            assert explain.workers == 0 or explain.nearest is None or explain.nearest.code in explain.rejected


@given(fleets(), asks(), asks())
@examples()
def test_rollback_restores_the_inventory(fleet: Fleet, before: list[Ask], tried: list[Ask]) -> None:
    inventory = fleet.inventory()
    place(inventory, before)
    mine = [replace(ask, instance=f"t{ask.instance}") for ask in tried]
    first = place(inventory, mine)
    inventory.rollback()
    assert place(inventory, mine) == first


@examples(50)
@given(fleets(), asks())
def test_at_rest_nothing_feasible_is_pending(fleet: Fleet, wanted: list[Ask]) -> None:
    inventory = fleet.inventory()
    waiting = [ask for ask, d in zip(wanted, place(inventory, wanted), strict=True) if isinstance(d, Unplaced)]
    assert all(isinstance(d, Unplaced) for d in place(inventory, waiting))


@given(fleets(), asks())
@examples()
def test_the_cache_equals_a_fresh_reading(fleet: Fleet, wanted: list[Ask]) -> None:
    """Later asks see no difference between a reservation in memory and the same claims read from the ledger."""
    cached = fleet.inventory()
    decisions = place(cached, wanted)
    again = [replace(ask, instance=f"n{ask.instance}") for ask in wanted]
    assert place(_committed(fleet, wanted, decisions), again) == place(cached, again)


def _committed(fleet: Fleet, wanted: list[Ask], decisions: list[Decision]) -> Inventory:
    loads = []
    for ask, decision in zip(wanted, decisions, strict=True):
        if isinstance(decision, Placed):
            taken = Counter({c.device: 1 for c in decision.claims})
            assert max(taken.values()) == 1
            for claim in decision.claims:
                device = fleet.devices[claim.device]
                fleet.set(
                    claim.device,
                    claimed_mib=device.claimed_mib + claim.memory_mib,
                    claimed_cpu_milli=device.claimed_cpu_milli + claim.cpu_milli,
                    claims=device.claims + 1,
                    exclusive_claims=device.exclusive_claims + claim.exclusive,
                )
            gpus = tuple(gpus_of(decision))
            loads.append(InstanceLoad(ask.instance, ask.deployment_uid, decision.workers, gpus))
    fresh = fleet.inventory()
    fresh.upsert_load(loads)
    return fresh


@given(fleets(), fleets(), asks())
@examples()
def test_one_more_worker_never_hinders(fleet: Fleet, others: Fleet, wanted: list[Ask]) -> None:
    """An ask that fits still fits after a worker has joined, unless it asks for all that there is."""
    wanted = [ask for ask in wanted if ask.gpus or ask.workers or not (ask.all_gpus or ask.all_workers)]
    before = [place(fleet.inventory(), [ask])[0] for ask in wanted]
    for name in list(others.workers)[:1]:
        joined = replace(others.workers[name], id="id-new", name="new")
        fleet.workers["new"] = joined
        for uuid, device in others.devices.items():
            if device.worker_id == f"id-{name}":
                fleet.devices[f"new/{uuid}"] = replace(device, uuid=f"new/{uuid}", worker_id="id-new")
    for ask, decision in zip(wanted, before, strict=True):
        assert isinstance(place(fleet.inventory(), [ask])[0], Placed) or isinstance(decision, Unplaced)


@given(fleets(), asks(), st.lists(st.tuples(st.sampled_from("de"), st.integers(0, 3), st.integers(0, 3)), max_size=8))
@examples()
def test_ranking_one_group_of_each_state_decides_as_ranking_all(
    fleet: Fleet, wanted: list[Ask], running: list[tuple[str, int, int]]
) -> None:
    """Large fleets rank one group of each state. Here small ones do, with workers that are often equal."""
    for number in range(1, 4):
        twin = replace(
            fleet.workers.get("w0") or Fleet().add("w0").workers["w0"], id=f"id-t{number}", name=f"t{number}"
        )
        fleet.workers[f"t{number}"] = twin
        for device in [d for d in fleet.devices.values() if d.worker_id == "id-w0"]:
            uuid = f"t{number}/{device.uuid}"
            fleet.devices[uuid] = replace(device, uuid=uuid, worker_id=f"id-t{number}")
    loads = [InstanceLoad(f"r{n}", uid, (f"id-w{w}",), (f"w{w}/{g}",)) for n, (uid, w, g) in enumerate(running)]
    decided = []
    for few in (10**9, 0):
        with patch.object(candidates, "_FEW_GROUPS", few):
            inventory = fleet.inventory()
            inventory.upsert_load(loads)
            decided.append([place(inventory, [replace(a, instance=f"{a.instance}{n}") for a in wanted]) for n in "ab"])
    assert decided[0] == decided[1]
