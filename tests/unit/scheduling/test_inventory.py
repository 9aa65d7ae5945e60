"""The inventory as a cache: rows count as read, and a reservation stands until its row is read or it is taken back."""

from dataclasses import fields, replace

import pytest

from controller.domain.admission import InstanceLoad
from controller.domain.placement import Ask, Layout, Placed, PlannedClaim, Unplaced
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import place
from support.builders.fleet import GIB, Fleet, gpus_of

WHOLE = (Layout(1, 0, True),)


def take(inventory: Inventory, instance: str = "i") -> Placed:
    decision = place(inventory, [Ask(instance, "d", WHOLE)])[0]
    assert isinstance(decision, Placed), decision
    return decision


def full(inventory: Inventory) -> bool:
    decision = place(inventory, [Ask("probe", "d", WHOLE)])[0]
    inventory.rollback()
    return isinstance(decision, Unplaced)


def test_rollback_takes_back_the_whole_pass_and_nothing_before_it() -> None:
    inventory = Fleet().add("w", [GIB] * 3).inventory()
    take(inventory, "kept")
    decisions = place(inventory, [Ask("x", "d", WHOLE), Ask("y", "d", WHOLE)])
    assert all(isinstance(d, Placed) for d in decisions)
    assert full(inventory)
    decisions = place(inventory, [Ask("x", "d", WHOLE)])
    inventory.rollback()
    assert inventory.gpus.claims[:-1].tolist() == [1, 1, 1]


def test_one_decision_of_a_pass_can_be_taken_back() -> None:
    inventory = Fleet().add("w", [GIB] * 2).inventory()
    first, second = place(inventory, [Ask("x", "d", WHOLE), Ask("y", "d", WHOLE)])
    assert isinstance(first, Placed)
    assert isinstance(second, Placed)
    inventory.unreserve(first)
    assert gpus_of(take(inventory)) == gpus_of(first)
    assert inventory.workers.instances.tolist() == [2]


def test_a_reservation_stands_until_the_device_is_read_again() -> None:
    fleet = Fleet().add("w", [GIB])
    inventory = fleet.inventory()
    take(inventory)
    assert full(inventory)
    fleet.add("x")
    inventory.upsert_workers(fleet.workers.values())  # lays the arrays out anew
    inventory.upsert_devices([fleet.devices["host-x"]])
    assert full(inventory)
    inventory.upsert_devices([fleet.devices["w/0"]])
    assert not full(inventory)


def test_rollback_leaves_a_device_alone_that_was_read_since() -> None:
    fleet = Fleet().add("w", [GIB])
    inventory = fleet.inventory()
    take(inventory)
    inventory.upsert_devices([fleet.claim("w/0").devices["w/0"]])
    inventory.rollback()
    assert inventory.gpus.claims[:-1].tolist() == [1]
    assert full(inventory)


def test_workers_come_change_and_go() -> None:
    fleet = Fleet().add("a", [GIB]).add("b", [GIB])
    inventory = fleet.inventory()
    inventory.upsert_workers([replace(fleet.workers["a"], ready=False)])
    assert gpus_of(take(inventory)) == ["b/0"]
    inventory.upsert_workers([replace(fleet.workers["a"], labels={"zone": "z"})])
    labelled = Ask("z", "d", WHOLE, labels={"zone": "z"})
    assert isinstance(place(inventory, [labelled])[0], Placed)
    inventory.rollback()
    inventory.remove_workers(["id-a", "id-never"])
    assert inventory.gpus.uuid == ["b/0"]
    assert isinstance(place(inventory, [labelled])[0], Unplaced)
    inventory.upsert_workers([fleet.workers["a"]])
    assert inventory.gpus.uuid == ["b/0"]  # its devices went with it


def test_a_gpu_keeps_its_identity_when_it_is_renumbered_or_moves() -> None:
    fleet = Fleet().add("a", [GIB] * 2).add("b")
    inventory = fleet.claim("a/0").inventory()
    inventory.upsert_devices([replace(fleet.devices["a/0"], index=1), replace(fleet.devices["a/1"], index=0)])
    assert inventory.gpus.uuid == ["a/1", "a/0"]
    assert inventory.gpus.claims[:-1].tolist() == [0, 1]
    inventory.upsert_devices([replace(fleet.devices["a/0"], worker_id="id-b")])
    assert inventory.workers.first_gpu.tolist() == [0, 1, 2]
    inventory.remove_devices(["a/1", "never"])
    assert inventory.gpus.uuid == ["a/0"]


def test_loads_count_once_however_often_they_are_read() -> None:
    inventory = Fleet().add("w", [GIB] * 2).inventory()
    load = InstanceLoad("1", "d", ("id-w",), ("w/0",))
    for _ in range(3):
        inventory.upsert_load([load])
    assert inventory.gpus.instances[:-1].tolist() == [1, 0]
    inventory.upsert_load([replace(load, gpus=("w/1",))])
    assert inventory.gpus.instances[:-1].tolist() == [0, 1]
    assert inventory.deployment_on("d") == ({"id-w": 1}, {"w/1": 1})
    inventory.remove_load(["1", "never"])
    assert inventory.workers.instances.tolist() == [0]
    assert inventory.deployment_on("d") == ({}, {})


def test_claims_are_excluded_from_what_is_known_now() -> None:
    """The arrays are built at the first use, whichever it is."""
    fleet = Fleet().add("w", [GIB]).claim("w/0")
    claims = (PlannedClaim("w/0", GIB, 0, True, 0),)
    inventory = Inventory()
    inventory.upsert_devices(fleet.devices.values())
    inventory.upsert_workers(fleet.workers.values())
    inventory.exclude(claims)
    assert inventory.gpus.claims[:-1].tolist() == [0]
    assert not full(inventory)
    inventory.restore(claims)
    assert inventory.gpus.claims[:-1].tolist() == [1]
    assert full(inventory)


def test_each_table_shows_the_workers_that_came() -> None:
    for read in (
        lambda one: len(one.groups.worker),
        lambda one: len(one.workers.entries),
        lambda one: len(one.gpus.uuid),
        lambda one: len(one.row_of_name),
        lambda one: len(one.groups_on(["id-v", "id-w", "id-never"])),
        lambda one: len([w for w in ("id-v", "id-w") if one.worker_row(w) is not None]),
        lambda one: len([u for u in ("v/0", "w/0", "host-v") if one.gpu_row(u) is not None]),
        lambda one: len([u for u in ("host-v", "host-w", "v/0") if one.host_row(u) is not None]),
    ):
        fleet = Fleet().add("v", [GIB])
        inventory = fleet.inventory()
        assert read(inventory) == 1
        fleet.add("w", [GIB])
        inventory.upsert_devices(fleet.devices.values())
        inventory.upsert_workers(fleet.workers.values())
        assert read(inventory) == 2


def columns(inventory: Inventory) -> dict[str, list[object]]:
    tables = {"gpu": inventory.gpus, "worker": inventory.workers}
    return {
        f"{name} {column.name}": list(getattr(table, column.name))
        for name, table in tables.items()
        for column in fields(table)
    }


CHANGES: list[dict[str, object]] = [
    {"memory_mib": 7 * GIB},
    {"reserved_mib": 3},
    {"foreign_mib": 5},
    {"foreign_mib": 20 * GIB},  # more than the GPU has free
    {"claimed_mib": GIB, "claims": 1},
    {"claimed_mib": 9 * GIB, "claims": 2},
    {"claimed_mib": 8 * GIB, "claims": 1, "exclusive_claims": 1},
    {"healthy": False},
    {"mig_mode": True},
    {"cordoned": True},
    {"compute_capability": (8, 6)},
    {"compute_capability": None},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("before", [{}, *CHANGES], ids=str)
def test_a_gpu_that_is_read_again_counts_as_in_a_fresh_inventory(
    before: dict[str, object], change: dict[str, object]
) -> None:
    fleet = Fleet().add("w", [8 * GIB] * 2).set("w/0", **before)
    kept = fleet.inventory()
    assert kept.gpus.free.shape == (3,), "the arrays are laid out before the change"
    fleet.set("w/0", **change)
    kept.upsert_devices([fleet.devices["w/0"]])
    assert columns(kept) == columns(fleet.inventory())


@pytest.mark.parametrize(
    "change",
    [
        {"memory_mib": 7 * GIB},
        {"reserved_mib": 3},
        {"cpu_milli": 5},
        {"claimed_mib": 9, "claimed_cpu_milli": 7},
        {"healthy": False},
    ],
    ids=str,
)
def test_a_host_that_is_read_again_counts_as_in_a_fresh_inventory(change: dict[str, object]) -> None:
    fleet = Fleet().add("w", [GIB]).add("x")
    kept = fleet.inventory()
    assert kept.workers.memory.shape == (2,)
    fleet.set("host-w", **change)
    kept.upsert_devices([fleet.devices["host-w"]])
    assert columns(kept) == columns(fleet.inventory())


@pytest.mark.parametrize(
    ("claims", "free", "unclaimed"),
    [
        ([], 7 * GIB, 8 * GIB),  # only an exclusive claim gets the reserved memory too
        ([(GIB, False)], 6 * GIB, -1),
        ([(8 * GIB, True)], -1, -1),
        ([(GIB, False), (6 * GIB, False)], 0, -1),
        ([(GIB, False), (7 * GIB, False)], -1, -1),
    ],
)
def test_the_memory_for_a_further_claim(claims: list[tuple[int, bool]], free: int, unclaimed: int) -> None:
    inventory = Fleet().add("w", [8 * GIB]).set("w/0", reserved_mib=GIB).inventory()
    planned = [PlannedClaim("w/0", memory, 0, exclusive, 0, 0) for memory, exclusive in claims]
    assert inventory.gpus.free[0] == 7 * GIB
    inventory.restore(planned)
    assert (inventory.gpus.free[0], inventory.gpus.whole[0]) == (free, unclaimed)
    inventory.exclude(planned)
    assert (inventory.gpus.free[0], inventory.gpus.whole[0]) == (7 * GIB, 8 * GIB)


def test_rows_are_by_uuid_and_kind() -> None:
    fleet = Fleet().add("w", [GIB]).add("a")
    inventory = fleet.inventory()
    assert (inventory.gpu_row("w/0"), inventory.host_row("host-w"), inventory.host_row("host-a")) == (0, 1, 0)
    assert (inventory.gpu_row("host-w"), inventory.host_row("w/0")) == (None, None)
    assert (inventory.gpu_row("?"), inventory.host_row("?"), inventory.worker_row("?")) == (None, None, None)
    inventory.remove_workers(["id-w"])
    assert (inventory.gpu_row("w/0"), inventory.host_row("host-w"), inventory.worker_row("id-a")) == (None, None, 0)


def test_a_worker_that_is_removed_is_gone_also_without_devices() -> None:
    fleet = Fleet().add("a", [GIB]).add("b", [GIB])
    inventory = fleet.inventory()
    inventory.remove_devices(["b/0", "host-b"])
    assert set(inventory.row_of_name) == {"a", "b"}
    inventory.remove_workers(["id-b"])
    assert set(inventory.row_of_name) == {"a"}
    inventory.remove_workers(["id-b", "id-a"])
    assert (set(inventory.row_of_name), inventory.gpus.uuid) == (set(), [])


def test_a_host_that_fails_takes_nothing_more_and_takes_again_once_it_is_well() -> None:
    fleet = Fleet().add("a", [GIB])
    inventory = fleet.inventory()
    for healthy in (True, False, True):
        inventory.upsert_devices([replace(fleet.devices["host-a"], healthy=healthy)])
        assert full(inventory) is not healthy
