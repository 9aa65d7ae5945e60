"""GPUs that are lost again and again, as a row of reports."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import pytest

from controller.decide.gpu_flapping import hold_s
from controller.decide.inventory_report import compare_gpus
from controller.domain.devices import DeviceRow, KnownDevice
from schemas.wire import ReportedGpu
from support.builders.facts import NOW

LOST = "gpu_lost: GPU is lost"
ROW = DeviceRow("GPU-a", "gpu", 0, "H100", None, 80, 80, 0, "ok", "", mig_mode=False, present=True)


class Gpu:
    """One GPU, as it is stored after each report."""

    def __init__(self) -> None:
        self.row = ROW
        self.dismissed = 0
        self.recovered: list[str] = []

    def told(self, at_s: float, health: str) -> str:
        """Its health and the code of its reason after a report at this second.

        "missing": it is not in the report; "smaller": it is well, but has less memory.
        """
        known = KnownDevice(self.row, "w", True, 0, 0, 0, self.dismissed, read_at=_at(at_s))
        reports: Sequence[ReportedGpu] | None = ()
        if health == "unreadable":
            reports = None
        elif health != "missing":
            sick = {} if health in ("ok", "smaller") else {"health": "unhealthy", "health_reason": health}
            fields = {"uuid": "GPU-a", "index": 0, "model": "H100", "memory_mib": 70 if health == "smaller" else 80}
            reports = (msgspec.convert(fields | sick, ReportedGpu),)
        plan = compare_gpus("w", reports, {"GPU-a": known}, "nvml_failed")
        self.recovered = [was for _, was in plan.recovered]
        for row in plan.rows:
            self.row = row
        return " ".join((self.row.health, self.row.health_reason.partition(":")[0])).strip()


def _at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


@pytest.mark.parametrize("gone", [LOST, "missing", "xid_79: it fell off the bus"])
def test_from_the_second_loss_on_it_is_kept_from_placement(gone: str) -> None:
    gpu = Gpu()
    gpu.told(0, gone)
    assert gpu.told(5, "ok") == "ok", "the first loss costs nothing"
    assert gpu.recovered == [gone]
    gpu.told(10, gone)
    assert gpu.told(15, "ok") == "unhealthy unsteady"
    assert gpu.recovered == []
    assert "it was lost 2 times" in gpu.row.health_reason
    assert f"{_at(70):%H:%M:%S} UTC" in gpu.row.health_reason
    before = gpu.row
    assert gpu.told(69, "ok") == "unhealthy unsteady"
    assert gpu.row == before, "nothing is written until it changes"
    assert gpu.told(70, "ok") == "ok"
    assert len(gpu.recovered) == 1


def test_a_loss_while_it_is_unsteady_counts_and_one_after_a_day_begins_anew() -> None:
    gpu, losses = Gpu(), []
    for n in range(5):
        gpu.told(10 * n, LOST)
        gpu.told(10 * n + 5, "ok")
        losses.append(gpu.row.losses)
    assert losses == [1, 2, 3, 4, 5]
    assert gpu.row.unsteady_until == _at(40 + 480)
    day_later = 40 + 480 + 86_400
    assert gpu.told(day_later, "ok") == "ok"
    gpu.told(day_later + 1, LOST)
    assert gpu.told(day_later + 6, "ok") == "ok"
    assert gpu.row.losses == 1


@pytest.mark.parametrize("way", [(), ("unreadable",), ("gpu_unreadable: no answer",), ("xid_48: double bit",)])
@pytest.mark.parametrize("gone", [LOST, "missing"])
def test_a_loss_counts_once_whatever_comes_before_and_meanwhile(way: Sequence[str], gone: str) -> None:
    """An agent waits before it says that a GPU is gone. Beside a lost one the driver may fail as a whole."""
    gpu = Gpu()
    for round_ in range(2):
        for n, health in enumerate((*way, gone, "unreadable", gone, "gpu_unreadable: no answer", "missing", gone)):
            gpu.told(100 * round_ + n, health)
        assert gpu.row.losses == round_ + 1
        gpu.told(100 * round_ + 50, "ok")
    assert gpu.row.health_reason.startswith("unsteady:")


def test_less_memory_is_a_return() -> None:
    gpu = Gpu()
    gpu.told(0, LOST)
    gpu.told(5, "smaller")
    assert (gpu.row.health_reason, gpu.row.lost) == ("memory_shrunk", False)
    gpu.told(10, LOST)
    assert gpu.row.losses == 2


def test_one_that_an_operator_says_to_be_well_begins_anew() -> None:
    gpu = Gpu()
    for at_s in (0, 10):
        gpu.told(at_s, LOST)
        gpu.told(at_s + 5, "ok")
    gpu.dismissed += 1
    assert gpu.told(20, "ok") == "ok"
    gpu.told(25, LOST)
    assert gpu.told(30, "ok") == "ok"
    assert gpu.row.losses == 1


def test_a_slice_that_an_operator_removes_does_not_count() -> None:
    parent = replace(ROW, mig_mode=True)
    part = replace(ROW, uuid="MIG-a", parent="GPU-a")
    known = {row.uuid: KnownDevice(row, "w", True, 0, 0, 0, 0, read_at=NOW) for row in (parent, part)}
    there = ReportedGpu(uuid="GPU-a", index=0, model="H100", memory_mib=80, mig_mode=True)
    removed, with_its_gpu = compare_gpus("w", (there,), known), compare_gpus("w", (), known)
    assert [(row.losses, row.lost) for row in removed.rows if row.uuid == "MIG-a"] == [(0, True)]
    assert [row.losses for row in with_its_gpu.rows] == [1, 1]
    sick = msgspec.structs.replace(there, health="unhealthy", health_reason="gpu_unreadable: no answer")
    beside_unread = compare_gpus("w", (sick,), known)
    assert [row.losses for row in beside_unread.rows if row.uuid == "MIG-a"] == [1]


def test_another_trouble_is_told_as_it_is() -> None:
    gpu = Gpu()
    gpu.row = replace(ROW, losses=3, unsteady_until=_at(100))
    assert gpu.told(5, "xid_48: double bit") == "unhealthy xid_48"
    assert gpu.told(10, "unreadable") == "unknown nvml_failed"
    assert gpu.told(15, "ok") == "unhealthy unsteady"
    assert gpu.told(100, "ok") == "ok"


def test_the_time_doubles_up_to_an_hour() -> None:
    assert [hold_s(n) for n in range(1, 10)] == [0, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert hold_s(10**6) == 3600


@pytest.mark.parametrize(("earlier", "held_s"), [(1, 0), (2, 60), (3, 120)])
@pytest.mark.parametrize(("after_s", "counts"), [(86_399, True), (86_400, False)])
def test_losses_are_in_a_row_within_a_day_of_the_last_one(
    earlier: int, held_s: int, after_s: int, counts: bool
) -> None:
    gpu = Gpu()
    for n in range(earlier):
        gpu.told(100 * n, LOST)
        gpu.told(100 * n + 50, "ok")
    last_s = 100 * (earlier - 1)
    assert gpu.row.unsteady_until == _at(last_s + held_s)
    gpu.told(last_s + after_s, LOST)
    assert gpu.row.losses == (earlier + 1 if counts else 1)
