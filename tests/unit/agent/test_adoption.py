import pytest
from msgspec.structs import replace

from agent.decide.adoption import plan_adoption
from agent.state.process_records import HostProcess, ProcessKey, ProcessRecord

KEY = ProcessKey("i-1", 3, 0)
RECORD = ProcessRecord(instance="i-1", epoch=3, rank=0, state="running", boot_id="boot", pid=100, pid_start_ticks=7)
NO_PID = replace(RECORD, pid=None, pid_start_ticks=None)
WITH_PARENT = replace(RECORD, parent_pid=90, parent_start_ticks=6)
LEADER = HostProcess(100, 100, 100, 7, zombie=False, marked=KEY)
CHILD = HostProcess(101, 100, 100, 8, zombie=False, marked=KEY)


@pytest.mark.parametrize(
    ("record", "boot_id", "found", "expected"),
    [
        (RECORD, "boot", (LEADER, CHILD), "adopt"),
        (RECORD, "boot", (HostProcess(100, 100, 100, 7, zombie=False),), "adopt"),  # its title hides its environment
        (NO_PID, "boot", (CHILD, LEADER), "adopt"),
        (RECORD, "boot", (CHILD,), "clean_up"),
        (RECORD, "boot", (HostProcess(100, 100, 100, 7, zombie=True, marked=KEY), CHILD), "clean_up"),
        (NO_PID, "boot", (CHILD,), "clean_up"),
        (RECORD, "boot", (), "gone"),
        (RECORD, "boot", (HostProcess(100, 100, 100, 9, zombie=False),), "gone"),  # the pid was reused
        (RECORD, "boot", (HostProcess(100, 100, 100, 7, zombie=True, marked=KEY),), "gone"),
        (WITH_PARENT, "boot", (HostProcess(100, 100, 100, 7, zombie=True, parent=90),), "adopt"),  # which keeps it
        (WITH_PARENT, "boot", (HostProcess(100, 100, 100, 7, zombie=True, parent=1),), "gone"),  # the parent has died
        (WITH_PARENT, "boot", (HostProcess(100, 100, 100, 9, zombie=True, parent=90),), "gone"),
        (WITH_PARENT, "later", (HostProcess(100, 100, 100, 7, zombie=True, parent=90),), "gone"),
        (RECORD, "later", (HostProcess(100, 100, 100, 7, zombie=False),), "gone"),
        (NO_PID, "boot", (HostProcess(5, 5, 5, 1, zombie=False, marked=ProcessKey("i-1", 2, 0)),), "gone"),
    ],
)
def test_one_record(record: ProcessRecord, boot_id: str, found: tuple[HostProcess, ...], expected: str) -> None:
    plan = plan_adoption([record], boot_id, found)
    keys = {
        "adopt": [r.key for r, _ in plan.adopt],
        "clean_up": [r.key for r, _ in plan.clean_up],
        "gone": [r.key for r in plan.gone],
    }
    assert keys == {name: [KEY] if name == expected else [] for name in keys}


def test_marked_processes_that_the_journal_does_not_list_as_alive_are_strays() -> None:
    other = HostProcess(200, 200, 200, 5, zombie=False, marked=ProcessKey("i-2", 1, 0))
    plan = plan_adoption([RECORD], "boot", (LEADER, CHILD, other, HostProcess(1, 1, 1, 0, zombie=False)))
    assert plan.strays == (200,)
    assert [leader.pid for _, leader in plan.adopt] == [100]
