"""Inventories against stored rows, case by case."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from controller.decide.inventory_report import compare_inventory
from controller.domain.devices import DeviceChanges, DeviceRow, KnownDevice
from schemas.wire import Inventory, ReportedGpu, ReportedHost
from support.builders.facts import NOW

HOST = ReportedHost(os="linux", arch="x86_64", hostname="h", memory_mib=1000, cpu_milli=8000)
HOST_ROW = DeviceRow("host-w", "host", 0, "", None, 1000, 1000, 8000, "ok", "", mig_mode=False, present=True)
ROW = DeviceRow("GPU-a", "gpu", 0, "H100", None, 80, 80, 0, "ok", "", mig_mode=False, present=True)


def facts(memory_mib: int = 80, **fields: Any) -> ReportedGpu:
    return msgspec.convert(
        {"uuid": "GPU-a", "index": 0, "model": "H100", "memory_mib": memory_mib, **fields}, ReportedGpu
    )


def known(row: DeviceRow = ROW, *, owner: str = "w", holds: bool = True, **counters: int) -> KnownDevice:
    return KnownDevice(
        row,
        owner,
        holds,
        claims=counters.get("claims", 0),
        exclusive_claims=counters.get("exclusive", 0),
        claimed_cpu_milli=counters.get("cpu", 0),
        dismissed=0,
        read_at=NOW,
    )


def made(gpus: tuple[ReportedGpu, ...] | None, *stored: KnownDevice, host: ReportedHost = HOST) -> DeviceChanges:
    return compare_inventory("w", Inventory(host=host, gpus=gpus), [known(HOST_ROW), *stored])


def written(plan: DeviceChanges) -> dict[str, Any]:
    (row,) = plan.rows
    before = ROW if row.kind == "gpu" else HOST_ROW
    return {name: getattr(row, name) for name in DeviceRow.__slots__ if getattr(row, name) != getattr(before, name)}


@pytest.mark.parametrize(
    ("reported", "stored", "change"),
    [
        pytest.param(
            facts(70), known(claims=1), {"reported_mib": 70, "health": "unhealthy", "health_reason": "memory_shrunk"},
            id="less under a claim: the size stays",
        ),
        pytest.param(
            facts(70), known(),
            {"memory_mib": 70, "reported_mib": 70, "health": "unhealthy", "health_reason": "memory_shrunk"},
            id="less, unclaimed",
        ),
        pytest.param(facts(90), known(claims=1), {"memory_mib": 90, "reported_mib": 90}, id="more, shared"),
        pytest.param(
            facts(90), known(claims=1, exclusive=1), {"reported_mib": 90}, id="more under an exclusive claim waits"
        ),
        pytest.param(
            facts(70, health="unhealthy", health_reason="xid"), known(claims=1),
            {"reported_mib": 70, "health": "unhealthy", "health_reason": "xid"},
            id="the agent's own reason wins",
        ),
        pytest.param(facts(health="unknown"), known(), {"health": "unknown"}, id="health"),
        pytest.param(facts(mig_mode=True), known(claims=1), {"mig_mode": True}, id="MIG"),
    ],
)  # fmt: skip
def test_reports_of_own_gpus(reported: ReportedGpu, stored: KnownDevice, change: dict[str, Any]) -> None:
    assert written(made((reported,), stored)) == change


def test_an_unchanged_report_writes_nothing() -> None:
    assert made((facts(),), known()).rows == ()


def test_a_shrunk_gpu_stays_marked_until_it_is_settled() -> None:
    shrunk = replace(ROW, memory_mib=70, reported_mib=70, health="unhealthy", health_reason="memory_shrunk")
    assert made((facts(70),), known(shrunk)).rows == ()
    (row,) = made((facts(80),), known(shrunk)).rows
    assert (row.memory_mib, row.health) == (80, "ok"), "it has its memory back"


def test_a_new_gpu_and_a_missing_one() -> None:
    plan = made((facts(uuid="GPU-b"),), known(claims=1))
    assert [(r.uuid, r.present, r.health, r.health_reason) for r in plan.rows] == [
        ("GPU-a", False, "unhealthy", "missing"),
        ("GPU-b", True, "ok", ""),
    ]
    assert plan.missing == ("GPU-a",)
    gone = replace(ROW, present=False, health="unhealthy", health_reason="missing")
    assert made((), known(gone)).missing == (), "it is reported once"


def test_unreadable_gpus_are_unknown_and_missing_ones_stay_missing() -> None:
    gone = replace(ROW, uuid="GPU-z", present=False, health="unhealthy", health_reason="missing")
    plan = made(None, known(), known(gone))
    assert written(plan) == {"health": "unknown", "health_reason": "unreadable"}
    assert not plan.gpus_known


@pytest.mark.parametrize(
    ("holds", "claims", "moves"),
    [(True, 0, False), (True, 1, False), (False, 1, False), (False, 0, True)],
    ids=["the other is ready", "ready and claimed", "claimed", "nothing can run there"],
)
def test_gpus_of_other_workers(holds: bool, claims: int, moves: bool) -> None:
    plan = made((facts(),), known(owner="other", holds=holds, claims=claims))
    assert bool(plan.rows) is moves
    assert [device.worker_id for device in plan.refused] == ([] if moves else ["other"])


@pytest.mark.parametrize(("cpu_milli", "claimed", "left"), [(4000, 0, 4000), (4000, 6000, 6000), (9000, 6000, 9000)])
def test_the_hosts_cpu_never_falls_below_its_claims(cpu_milli: int, claimed: int, left: int) -> None:
    inventory = Inventory(host=msgspec.structs.replace(HOST, cpu_milli=cpu_milli), gpus=())
    (row,) = compare_inventory("w", inventory, [known(HOST_ROW, cpu=claimed)]).rows
    assert (row.cpu_milli, row.health) == (left, "ok")


def test_the_hosts_memory_is_treated_like_a_gpus() -> None:
    host = msgspec.structs.replace(HOST, memory_mib=500)
    (row,) = compare_inventory("w", Inventory(host=host, gpus=()), [known(HOST_ROW, claims=1)]).rows
    assert (row.memory_mib, row.reported_mib, row.health) == (1000, 500, "unhealthy")


@pytest.mark.parametrize("before", ["missing", "gpu_lost: GPU is lost", "memory_shrunk"])
def test_a_gpu_that_is_well_again_is_told(before: str) -> None:
    sick = replace(ROW, health="unhealthy", health_reason=before, present=before != "missing")
    plan = made((facts(81),), known(sick))
    assert plan.recovered == (("GPU-a", before),)
    assert made((facts(),), known()).recovered == (), "it was well before"
    unread = replace(ROW, health="unknown", health_reason="nvml_hang: a call does not return")
    assert made((facts(),), known(unread)).recovered == (), "the worker's own event tells that"
    assert made((facts(health="unhealthy", health_reason=before),), known(sick)).recovered == ()


def test_unreadable_gpus_say_why_and_a_slice_its_parent() -> None:
    inventory = Inventory(host=HOST, gpus=None, gpus_error="nvml_hang: a call does not return")
    (row,) = compare_inventory("w", inventory, [known(HOST_ROW), known()]).rows
    assert (row.health, row.health_reason) == ("unknown", "nvml_hang: a call does not return")
    (row,) = made((facts(uuid="MIG-1", parent="GPU-a"),)).rows
    assert row.parent == "GPU-a"
