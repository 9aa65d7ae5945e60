import pytest

from agent.processes.adopt import plan_adoption
from agent.processes.procfs import Seen
from agent.records import Key, ProcessRecord

KEY = Key("i-1", 3, 0)
RECORD = ProcessRecord(instance="i-1", epoch=3, rank=0, state="running", boot_id="boot", pid=100, pid_start_ticks=7)
NO_PID = RECORD.model_copy(update={"pid": None, "pid_start_ticks": None})
LEADER = Seen(100, 100, 100, 7, zombie=False, marked=KEY)
CHILD = Seen(101, 100, 100, 8, zombie=False, marked=KEY)


@pytest.mark.parametrize(
    ("record", "boot_id", "seen", "expected"),
    [
        (RECORD, "boot", (LEADER, CHILD), "adopt"),
        (RECORD, "boot", (Seen(100, 100, 100, 7, zombie=False),), "adopt"),  # its title hides its environment
        (NO_PID, "boot", (CHILD, LEADER), "adopt"),
        (RECORD, "boot", (CHILD,), "clear"),
        (RECORD, "boot", (Seen(100, 100, 100, 7, zombie=True, marked=KEY), CHILD), "clear"),
        (NO_PID, "boot", (CHILD,), "clear"),
        (RECORD, "boot", (), "bury"),
        (RECORD, "boot", (Seen(100, 100, 100, 9, zombie=False),), "bury"),  # the pid is another's by now
        (RECORD, "boot", (Seen(100, 100, 100, 7, zombie=True, marked=KEY),), "bury"),
        (RECORD, "later", (Seen(100, 100, 100, 7, zombie=False),), "bury"),
        (NO_PID, "boot", (Seen(5, 5, 5, 1, zombie=False, marked=Key("i-1", 2, 0)),), "bury"),
    ],
)
def test_one_record(record: ProcessRecord, boot_id: str, seen: tuple[Seen, ...], expected: str) -> None:
    plan = plan_adoption([record], boot_id, seen)
    adopted, cleared = [r.key for r, _ in plan.adopt], [r.key for r, _ in plan.clear]
    found = {"adopt": adopted, "clear": cleared, "bury": [r.key for r in plan.bury]}
    assert found == {name: [KEY] if name == expected else [] for name in found}


def test_marked_processes_that_the_journal_does_not_hold_for_living_are_killed() -> None:
    other = Seen(200, 200, 200, 5, zombie=False, marked=Key("i-2", 1, 0))
    plan = plan_adoption([RECORD], "boot", (LEADER, CHILD, other, Seen(1, 1, 1, 0, zombie=False)))
    assert plan.kill == (200,)
    assert [leader.pid for _, leader in plan.adopt] == [100]
