"""What is known of GPUs from one answer of the driver to the next."""

from typing import Any

import msgspec
import pytest

from agent.gpus.answers import ChildAnswer
from agent.gpus.known_gpus import HOLD_S, KnownGpus
from schemas.wire import ReportedGpu

A, B = "GPU-a", "GPU-b"


def gpu(uuid: str, index: int = 0, *, parent: str | None = None, **fields: Any) -> dict[str, Any]:
    values = {"memory": [81920, 10], "utilization": 5, "model": "H100", "recovery": "none", **fields}
    return {"index": index, "uuid": uuid, "parent": parent, "fields": {n: {"value": v} for n, v in values.items()}}


def lost(index: int, code: int = 15) -> dict[str, Any]:
    return {"index": index, "error": "GPU is lost" if code == 15 else "Unknown Error", "code": code}


class Host:
    def __init__(self) -> None:
        self.known = KnownGpus("h", 1000)
        self.now_s = 0.0

    def answer(self, *gpus: Any, xids: tuple[Any, ...] = (), after_s: float = 1.0) -> dict[str, ReportedGpu]:
        self.now_s += after_s
        answer = msgspec.convert({"driver": "1", "gpus": gpus, "xids": xids}, ChildAnswer)
        return {facts.uuid: facts for facts in self.known.take(answer, self.now_s)}


@pytest.fixture
def host() -> Host:
    return Host()


def xid(code: int, uuid: str = A, gpu_instance: int | None = None) -> dict[str, Any]:
    return {"uuid": uuid, "xid": code, "gpu_instance": gpu_instance}


def test_an_event_condemns_until_the_recovery_that_the_driver_asked_for(host: Host) -> None:
    assert host.answer(gpu(A), xids=(xid(95),))[A].health_reason.startswith("xid_95: ")
    assert host.answer(gpu(A))[A].health == "unhealthy", "no recovery was asked for, so none has been made"
    assert host.answer(gpu(A, recovery="gpu_reset"))[A].health_reason.startswith("xid_95: ")
    well = host.answer(gpu(A))[A]
    assert (well.health, well.health_reason) == ("ok", "")
    assert well.details is not None
    assert (well.details.xids, well.details.last_xid) == ({"95": 1}, 95), "what has been is still told"


def test_a_gpu_that_fell_off_the_bus_is_well_once_it_is_back(host: Host) -> None:
    host.answer(gpu(A), xids=(xid(79),))
    assert host.answer(lost(0))[A].health_reason == "gpu_lost: GPU is lost"
    assert host.answer(gpu(A))[A].health == "ok"


def test_falling_off_the_bus_is_the_gravest_event(host: Host) -> None:
    assert host.answer(gpu(A), xids=(xid(48), xid(95)))[A].health_reason.startswith("xid_48")
    assert host.answer(gpu(A), xids=(xid(79),))[A].health_reason.startswith("xid_79")


def test_an_event_of_a_whole_gpu_condemns_its_slices(host: Host) -> None:
    slices = [gpu(f"MIG-{n}", parent=A, gpu_instance=n) for n in (1, 2)]
    found = host.answer(gpu(A, mig_mode=True), *slices, xids=(xid(79),))
    assert {one.health for one in found.values()} == {"unhealthy"}


def test_an_event_of_one_slice_condemns_it_alone(host: Host) -> None:
    slices = [gpu(f"MIG-{n}", parent=A, gpu_instance=n) for n in (1, 2)]
    host.answer(gpu(A, mig_mode=True), *slices)
    found = host.answer(gpu(A, mig_mode=True), *slices, xids=(xid(94, gpu_instance=2),))
    assert {uuid: one.health for uuid, one in found.items()} == {A: "ok", "MIG-1": "ok", "MIG-2": "unhealthy"}


def test_a_lost_gpu_takes_its_slices_with_it(host: Host) -> None:
    host.answer(gpu(A, mig_mode=True), gpu("MIG-1", parent=A))
    found = host.answer(lost(0))
    assert found[A].health_reason == "gpu_lost: GPU is lost"
    assert found["MIG-1"].health in ("unknown", "unhealthy")


def test_one_failed_reading_is_unknown_and_a_lasting_one_unhealthy(host: Host) -> None:
    host.answer(gpu(A), gpu(B, 1))
    found = host.answer(gpu(A), lost(1, 999))
    assert (found[B].health, found[B].used_mib, found[B].memory_mib) == ("unknown", None, 81920)
    assert host.answer(gpu(A), lost(1, 999), after_s=HOLD_S)[B].health == "unhealthy"
    assert host.answer(gpu(A), gpu(B, 1))[B].health == "ok"


def test_a_failing_index_is_the_gpu_that_no_other_index_has(host: Host) -> None:
    host.answer(gpu(A, 0), gpu(B, 1))
    found = host.answer(lost(0), gpu(A, 1))
    assert {uuid: one.health for uuid, one in found.items()} == {A: "ok", B: "unhealthy"}


def test_gpus_that_were_never_read_have_names_of_their_own(host: Host) -> None:
    assert list(host.answer(lost(0, 999), lost(1, 999))) == ["GPU-unreadable-0-h", "GPU-unreadable-1-h"]
    assert list(host.answer(gpu(A, 0), lost(1, 999))) == [A, "GPU-unreadable-1-h"]


def test_a_slice_whose_gpu_is_listed_is_gone_at_once_and_a_gpu_after_a_while(host: Host) -> None:
    host.answer(gpu(A, mig_mode=True), gpu("MIG-1", parent=A), gpu(B, 1))
    found = host.answer(gpu(A, mig_mode=True))
    assert (list(found), found[B].health) == ([A, B], "unknown")
    assert list(host.answer(gpu(A), after_s=HOLD_S)) == [A]


def test_shared_memory_is_the_hosts(host: Host) -> None:
    one = gpu(A)
    one["fields"]["memory"] = {"unsupported": True}
    facts = host.answer(one)[A]
    assert (facts.memory_mib, facts.used_mib, facts.health) == (1000, None, "unhealthy")
    assert facts.health_reason.startswith("unified_memory: ")


def test_details_hold_what_was_read_and_why_the_rest_was_not(host: Host) -> None:
    read = gpu(A, power_w=250.0, nvlinks=4, remapped_rows=[1, 2, 1, 0], of_a_later_version="x")
    read["fields"] |= {
        "energy_j": {"error": "Timeout"},
        "peers": {"unsupported": True},
        "sm_clock_mhz": {"value": None},
    }
    details = host.answer(read)[A].details
    assert details is not None
    assert (details.power_w, details.nvlinks, details.recovery) == (250.0, 4, "none")
    assert (details.energy_j, details.peers, details.sm_clock_mhz) == (None, None, None)
    assert (details.errors, details.unsupported) == ({"energy_j": "Timeout"}, ("peers",))
    rows = (details.rows_corrected, details.rows_uncorrected, details.rows_pending, details.rows_failed)
    assert rows == (1, 2, True, False)


def test_details_last_until_others_are_read(host: Host) -> None:
    """Memory and utilization are read more often than the rest."""
    first = host.answer(gpu(A, power_w=250.0))[A].details
    fast = {"index": 0, "uuid": A, "fields": {"memory": {"value": [81920, 20]}, "utilization": {"value": 9}}}
    assert host.answer(fast)[A].details == first
    then = host.answer(gpu(A, power_w=300.0))[A].details
    assert first is not None
    assert then is not None
    assert (first.power_w, then.power_w) == (250.0, 300.0)


def test_a_driver_that_reports_no_events_of_a_gpu_is_shown(host: Host) -> None:
    given = {"driver": "1", "gpus": [gpu(A), gpu(B, 1)], "xids_unsupported": [B]}
    shown = {f.uuid: f.details for f in host.known.take(msgspec.convert(given, ChildAnswer), 1.0)}
    assert {uuid: details is not None and "xids" in details.unsupported for uuid, details in shown.items()} == {
        A: False, B: True,
    }  # fmt: skip
