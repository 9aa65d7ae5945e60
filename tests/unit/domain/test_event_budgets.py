"""Whatever an agent sends, the events that it alone can cause are bounded for each of its objects and each hour."""

import ast
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.events import (
    AGENT_CAUSED,
    MOST_AN_HOUR,
    SUMMARY_EVERY,
    WINDOW,
    WRITTEN_FIRST,
    budget_of,
    fresh,
    spend,
)
from controller.domain.phases import WorkerPhase

CONTROLLER = Path(__file__).parents[3] / "controller"
START = datetime(2026, 1, 1, tzinfo=UTC)
# Where what an agent sends can be the cause of an event.
HEARS_AGENTS = (
    "hub",
    "reconcilers/workers.py",
    "decide/instances",
    "store/deployments/image_digests.py",
)
# What a name or an expression stands for there.
STANDS_FOR = {
    "GPU_MEMORY_HELD": ["gpu_memory_held"],
    "kind.reason": ["image_differs", "model_differs"],
    "hub/agreement.py reason": ["no_common_protocol", "advertise_refused"],
    "Reason.METADATA_UNKNOWN": ["metadata_unknown"],
    "f'worker_{change.new}'": [f"worker_{phase}" for phase in WorkerPhase],
    "hub/conditions.py reason": ["disk_pressure", "disk_freed", "gpus_readable", "gpus_unreadable"],
    "decide/instances/relocate.py reason": ["relocated", "relocation_abandoned"],
    "event.reason": ["rollout_started"],  # and all others of a rollout's attempt
}
# Reasons in those places that an agent cannot repeat, and what bounds them.
BOUNDED_ELSEWHERE = {
    "analyzed": "one for each revision",
    "failed": "the end of an instance",
    "metadata_unknown": "one for each revision: the controller reads the model",
    "order_not_sent": "one for each command, which is withdrawn",
    "relocated": "one for each relocation, which the leader begins",
    "relocating": "one for each relocation, which the leader begins",
    "relocation_abandoned": "one for each relocation, which the leader begins",
    "removed": "the end of an instance",
    "rollout_started": "one for each attempt, of which there are a few",
    "stopping": "the stop of an instance, which it enters once",
    "succeeded": "the end of an instance",
}


def reasons_written() -> Iterator[str]:
    """The reason of each event that those places make."""
    for place in HEARS_AGENTS:
        at = CONTROLLER / place
        for file in [at] if at.is_file() else sorted(at.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "NewEvent" and node.args:
                    if isinstance(node.args[0], ast.Constant):
                        yield str(node.args[0].value)
                        continue
                    source = ast.unparse(node.args[0])
                    yield from STANDS_FOR.get(source) or STANDS_FOR[f"{file.relative_to(CONTROLLER)} {source}"]


def test_every_reason_that_an_agent_can_cause_is_known() -> None:
    found = set(reasons_written())
    assert found == {*AGENT_CAUSED, *BOUNDED_ELSEWHERE}
    assert not AGENT_CAUSED.keys() & BOUNDED_ELSEWHERE.keys()


def test_an_event_spends_the_budget_of_what_an_agent_cannot_make_up() -> None:
    assert budget_of("gpu_missing", ("gpu:G", "worker:w", "instance:i")) == "worker:w"
    assert budget_of("running", ("instance:i", "worker:w")) == "instance:i"
    assert budget_of("applied", ("deployment:d",)) is None


def test_the_first_ones_are_whole_and_later_ones_counted() -> None:
    spent = spend(fresh(START), START, WRITTEN_FIRST + 5)
    assert (spent.late, spent.first, spent.summarized, spent.budget.held) == (False, WRITTEN_FIRST, None, 5)
    later = START + SUMMARY_EVERY
    spent = spend(spent.budget, later, 3)
    assert (spent.late, spent.first, spent.summarized, spent.budget.held) == (False, 0, 7, 0), "5 + 2, and the newest"
    spent = spend(spend(spent.budget, later, 2).budget, START + WINDOW, 1)
    assert (spent.late, spent.first, spent.summarized, spent.budget.held) == (True, 1, None, 0), "a new hour"


@given(st.lists(st.tuples(st.floats(0, 2_000), st.integers(1, 60)), max_size=300))
def test_no_hour_has_more_and_none_is_forgotten(steps: list[tuple[float, int]]) -> None:
    now, budget, sent, told = START, fresh(START), 0, 0
    written: list[datetime] = []
    for wait_s, number in steps:
        now += timedelta(seconds=wait_s)
        before, spent = budget.held, spend(budget, now, number)
        budget = spent.budget
        sent += number
        told += (before if spent.late else 0) + spent.first
        told += 0 if spent.summarized is None else spent.summarized + 1
        written += [now] * (spent.late + spent.first + (spent.summarized is not None))
        assert told + budget.held == sent
    for at in written:
        assert sum(at <= other < at + WINDOW for other in written) <= MOST_AN_HOUR


def test_a_clock_that_is_set_back_holds_nothing_back_for_long() -> None:
    spent = spend(fresh(START), START, WRITTEN_FIRST + 1)
    spent = spend(spent.budget, START - timedelta(days=1), 1)
    assert (spent.late, spent.first) == (True, 1)
