"""Searches and explanations that are kept while rows change decide as those of a fresh inventory."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.admission import Demand, InstanceLoad
from controller.domain.placement import Ask
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import place
from support.builders.fleet import GIB, Fleet
from support.builders.random_fleets import asks, fleets
from support.profiles import examples

USES = st.lists(
    st.tuples(
        st.integers(0, 30),  # of the devices
        st.sampled_from([
            {"foreign_mib": 0}, {"foreign_mib": 2 * GIB}, {"claimed_mib": 0, "claims": 0, "exclusive_claims": 0},
            {"claimed_mib": 6 * GIB, "claims": 2, "exclusive_claims": 0},
            {"claimed_mib": 8 * GIB, "claims": 1, "exclusive_claims": 1}, {"claimed_cpu_milli": 900},
            {"healthy": False}, {"cordoned": True},
        ]),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip
LOADS = st.lists(st.tuples(st.sampled_from("de"), st.integers(0, 3), st.integers(0, 3)), max_size=4)
DEMAND = Demand(1, 4 * GIB, False, 0, 0)


def loads_of(fleet: Fleet, running: list[tuple[str, int, int]]) -> list[InstanceLoad]:
    """Instances on workers that exist, each on a GPU that exists."""
    some = []
    for number, (uid, worker, gpu) in enumerate(running):
        if f"w{worker}" in fleet.workers:
            gpus = (f"w{worker}/{gpu}",) if f"w{worker}/{gpu}" in fleet.devices else ()
            some.append(InstanceLoad(f"r{number}", uid, (f"id-w{worker}",), gpus, demand=DEMAND))
    return some


def decided(inventory: Inventory, wanted: list[Ask]) -> object:
    decisions = place(inventory, wanted)
    inventory.rollback()
    return decisions


@examples(150)
@given(fleets(), asks(), st.lists(st.tuples(USES, LOADS), min_size=1, max_size=3), st.booleans())
def test_kept_searches_decide_as_fresh_ones(
    fleet: Fleet, wanted: list[Ask], changes: list[tuple[list[tuple[int, dict[str, object]]], list]], apart: bool
) -> None:
    """With `auto`, asks keep apart from their siblings as well."""
    if apart:
        wanted = [replace(ask, strategy="auto") for ask in wanted]
    kept = fleet.inventory()
    decided(kept, wanted)
    for uses, running in changes:
        uuids = sorted(fleet.devices)
        for number, fields in uses:
            if uuids:
                fleet.set(uuids[number % len(uuids)], **fields)
        kept.upsert_devices(fleet.devices.values())
        loads = loads_of(fleet, running)
        kept.remove_load([f"r{n}" for n in range(4)])
        kept.upsert_load(loads)
        fresh = fleet.inventory()
        fresh.upsert_load(loads)
        fresh.demand = kept.demand
        assert decided(kept, wanted) == decided(fresh, wanted)
