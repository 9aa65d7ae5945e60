from typing import Any

import pytest
from msgspec.structs import replace

from agent.decide.commands import (
    Action,
    AgentState,
    RecordNeverStarted,
    Refuse,
    ReportAgain,
    Spawn,
    Stop,
    decide,
    refused_record,
)
from agent.state.process_records import ProcessKey, ProcessRecord
from schemas.wire import ClaimOrder, Command, ProbeOrder, ReportedGpu, StartOrder, StopOrder

DEVICES = {
    "GPU-a": ReportedGpu(uuid="GPU-a", index=0, model="H100", memory_mib=100),
    "GPU-b": ReportedGpu(uuid="GPU-b", index=1, model="H100", memory_mib=100),
    "GPU-mig": ReportedGpu(uuid="GPU-mig", index=2, model="H100", memory_mib=100, mig_mode=True),
    "GPU-c": ReportedGpu(uuid="GPU-c", index=3, model="H100", memory_mib=100),
}
PROBE = ProbeOrder(path="/", period_s=1, timeout_s=1, failures=1)


def _order(*claims: tuple[str, int, bool], **fields: Any) -> StartOrder:
    given: dict[str, Any] = {
        "deployment": "d",
        "deployment_uid": "u",
        "argv": ("run",),
        "needs_port": False,
        "probe": None,
        "start_timeout_s": 1,
        "drain_time_s": 1,
    }
    held = tuple(ClaimOrder(device=device, memory_mib=mib, exclusive=exclusive) for device, mib, exclusive in claims)
    return StartOrder(**{**given, "claims": held, **fields})


def _record(instance: str, epoch: int, *claims: tuple[str, int, bool], state: str = "running") -> ProcessRecord:
    order = _order(*claims) if state != "exited" else None
    return ProcessRecord(instance=instance, epoch=epoch, rank=0, state=state, boot_id="b", order=order)  # type: ignore[arg-type] # a table's column


RUNNING = _record("i-run", 2, ("GPU-a", 60, False))
EXCLUSIVE = _record("i-alone", 1, ("GPU-b", 100, True))
EXITED = _record("i-end", 4, state="exited")
REFUSED = replace(_record("i-refused", 1, state="exited"), refusal="claim_conflict", message="full")


def _decide(
    verb: str, instance: str, epoch: int, *, term: int = 5, shutting_down: bool = False, **fields: Any
) -> Action:
    records = (RUNNING, EXCLUSIVE, EXITED, REFUSED)
    view = AgentState(
        highest_term=5,
        epochs={"i-run": 2, "i-alone": 1, "i-end": 4, "i-forgotten": 9},
        processes={record.key: record for record in records},
        live=[record for record in records if record.alive],
        devices=DEVICES,
        shutting_down=shutting_down,
    )
    return decide(view, Command(command_id=1, term=term, instance=instance, epoch=epoch, verb=verb, **fields))  # type: ignore[arg-type] # as above


@pytest.mark.parametrize(
    ("instance", "epoch", "order", "expected"),
    [
        ("new", 1, _order(), Spawn),
        ("new", 1, _order(("GPU-a", 40, False)), Spawn),
        ("new", 0, _order(), Spawn),
        ("new", 1, _order(("GPU-a", 40, False), ("GPU-c", 100, True)), Spawn),
        ("new", 1, _order(("GPU-a", 40, False), ("GPU-c", 101, False)), "claim_conflict"),
        ("new", 1, _order(("GPU-a", 41, False)), "claim_conflict"),
        ("new", 1, _order(("GPU-a", 10, True)), "claim_conflict"),
        ("new", 1, _order(("GPU-b", 0, False)), "claim_conflict"),
        ("new", 1, _order(("GPU-z", 1, False)), "unknown_device"),
        ("new", 1, _order(("GPU-mig", 1, False)), "unknown_device"),
        ("new", 1, _order(("GPU-a", 1, False), ("GPU-a", 1, False)), "bad_command"),
        ("new", 1, _order(argv=()), "bad_command"),
        ("new", 1, _order(argv=("", "run")), "bad_command"),
        ("new", 1, _order(argv=("run", "")), Spawn),
        ("new", 1, _order(argv=("a\0b",)), "bad_command"),
        ("new", 1, _order(env={"A": "b"}), Spawn),
        ("new", 1, _order(env={"A=B": "c"}), "bad_command"),
        ("new", 1, _order(env={"": "c"}), "bad_command"),
        ("new", 1, _order(env={"A\0": "c"}), "bad_command"),
        ("new", 1, _order(env={"A": "c\0"}), "bad_command"),
        ("new", 1, _order(probe=PROBE), "bad_command"),
        ("new", 1, _order(probe=PROBE, needs_port=True), Spawn),
        ("new", 1, _order(needs_port=True), Spawn),
        ("../up", 1, _order(), "bad_command"),
        ("new", 1, None, "bad_command"),
        ("i-run", 2, _order(), ReportAgain),
        ("i-run", 1, _order(), "old_epoch"),
        ("i-run", 3, _order(), "claim_conflict"),
        ("i-end", 4, _order(), ReportAgain),
        ("i-end", 3, _order(), "old_epoch"),
        ("i-end", 5, _order(), Spawn),
        ("i-forgotten", 8, _order(), "old_epoch"),
        ("i-refused", 1, _order(), "claim_conflict"),  # although it would fit now
        ("i-forgotten", 10, _order(), Spawn),
    ],
)
def test_start(instance: str, epoch: int, order: StartOrder | None, expected: object) -> None:
    action = _decide("start", instance, epoch, start=order)
    if isinstance(action, Refuse):
        assert (action.code, bool(action.message)) == (expected, True)
    else:
        assert type(action) is expected


@pytest.mark.parametrize(
    ("instance", "epoch", "expected"),
    [
        ("i-run", 2, Stop),
        ("i-end", 4, ReportAgain),
        ("unknown", 1, RecordNeverStarted),
        ("i-run", 1, RecordNeverStarted),  # an epoch that never started, or was forgotten: its exit may be confirmed
    ],
)
def test_stop(instance: str, epoch: int, expected: type) -> None:
    assert type(_decide("stop", instance, epoch, stop=StopOrder(drain_time_s=1))) is expected


def test_a_rank_starts_next_to_another_rank_of_its_instance() -> None:
    assert isinstance(_decide("start", "i-run", 3, start=_order(), rank=1), Spawn)


def test_a_stop_without_its_order_is_refused() -> None:
    action = _decide("stop", "i-run", 2)
    assert isinstance(action, Refuse)
    assert action.code == "bad_command"


@pytest.mark.parametrize("second_first", [False, True])
def test_the_claims_of_all_holders_of_a_gpu_count(second_first: bool) -> None:
    records = [_record("i-1", 1, ("GPU-c", 30, True)), _record("i-2", 1, ("GPU-c", 30, False))]
    shared = [_record("i-3", 1, ("GPU-c", 30, False)), records[1]]
    for live, mib, expected in ((records, 1, Refuse), (shared, 40, Spawn), (shared, 41, Refuse)):
        ordered = live[::-1] if second_first else live
        view = AgentState(0, {}, {record.key: record for record in ordered}, ordered, DEVICES)
        order = _order(("GPU-c", mib, False))
        command = Command(command_id=1, term=1, instance="new", epoch=1, verb="start", start=order)
        assert type(decide(view, command)) is expected, (mib, second_first)


@pytest.mark.parametrize(
    ("verb", "code", "kept"),
    [
        ("start", "claim_conflict", True),
        ("start", "bad_command", True),
        ("start", "unknown_device", True),
        ("start", "shutting_down", True),
        ("start", "old_term", False),  # it is sent again under the present term
        ("start", "old_epoch", False),
        ("stop", "bad_command", False),
        ("stop", "old_term", False),
    ],
)
def test_a_refused_start_is_recorded_and_stays_refused(verb: Any, code: Any, kept: bool) -> None:
    command = Command(command_id=1, term=5, instance="new", epoch=4, rank=1, verb=verb, start=_order())
    record = refused_record(command, Refuse(code, "why"), "boot")
    assert (record is not None) is kept
    if record is None:
        return
    assert (record.key, record.alive, record.boot_id) == (ProcessKey("new", 4, 1), False, "boot")
    assert (record.state, record.reason, record.acked) == ("exited", "gone", True)
    view = AgentState(5, {"new": 4}, {record.key: record}, [], DEVICES)
    assert decide(view, command) == Refuse(code, "why")


def test_an_old_term_is_refused_for_every_verb() -> None:
    for verb, order in (("start", {"start": _order()}), ("stop", {"stop": StopOrder(drain_time_s=1)})):
        action = _decide(verb, "i-run", 2, term=4, **order)
        assert isinstance(action, Refuse)
        assert action.code == "old_term"


def test_an_agent_that_shuts_down_accepts_stops_but_no_starts() -> None:
    refused = _decide("start", "new", 1, start=_order(), shutting_down=True)
    assert isinstance(refused, Refuse)
    assert refused.code == "shutting_down"
    assert _decide("start", "i-run", 2, start=_order(), shutting_down=True) == ReportAgain(ProcessKey("i-run", 2, 0))
    assert isinstance(_decide("stop", "i-run", 2, stop=StopOrder(drain_time_s=1), shutting_down=True), Stop)


def test_a_device_is_free_only_when_its_process_has_exited() -> None:
    stopping = replace(RUNNING, state="stopping")
    for record, expected in ((stopping, Refuse), (_record("i-run", 2, state="exited"), Spawn)):
        view = AgentState(0, {}, {record.key: record}, [record] if record.alive else [], DEVICES)
        command = Command(
            command_id=1, term=1, instance="new", epoch=1, verb="start", start=_order(("GPU-a", 100, True))
        )
        assert type(decide(view, command)) is expected
