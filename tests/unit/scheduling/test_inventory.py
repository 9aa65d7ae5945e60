"""The inventory as a cache: rows count as read, and a reservation stands until its row is read or it is taken back."""

from dataclasses import replace

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
        lambda one: len(one.workers.facts),
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
