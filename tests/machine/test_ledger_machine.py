"""Model checking of the ledger: two real controllers, three hosts and their faults, over PostgreSQL.

After each step the audit is clean, no device has conflicting processes, and every running process holds its claims.
Once faults cease, all settles. First come scenarios that are known to be hard, then those that hypothesis finds.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis.stateful import run_state_machine_as_test

from agent.state import journal
from machine.examples import MUST_HAPPEN, Bench
from machine.faults import Strike
from machine.hosts import GIB, GPU_MIB
from machine.rules import LedgerMachine
from support.database.postgres import PostgresServer
from support.profiles import TIMEOUT_S, machine_settings

pytestmark = pytest.mark.cases
ONE = {"replicas": 1, "resources": {"gpus": 1}}
SHARED = {"replicas": 3, "resources": {"gpus": 1, "gpu_memory": "10GiB"}}
GOOD = ["good"] * 3
STATEMENTS = 24  # more than any part of a step needs for so small a ledger


@pytest.fixture(scope="module")
def bench(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(postgres)
    LedgerMachine.bench = made
    yield made
    made.close()
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        sys.stdout.write(made.report())


class Story:
    """A machine driven by hand, with the checks that hypothesis makes between rules."""

    def __init__(self, machine: LedgerMachine) -> None:
        self.machine = machine

    def home(self) -> int:
        """The number of a host on which something runs."""
        return next(n for n, host in enumerate(self.machine.world.hosts) if host.running)

    def __getattr__(self, rule: str) -> Callable[..., None]:
        def call(**fields: Any) -> None:
            getattr(self.machine, rule)(**fields)
            self.machine.holds()

        return call


@contextmanager
def a_story(first: dict[str, Any] = ONE, second: dict[str, Any] = SHARED) -> Iterator[Story]:
    machine = LedgerMachine()
    try:
        machine.begin(first=first, second=second)
        machine.holds()
        yield Story(machine)
    except BaseException:
        machine.abandon()
        raise
    machine.teardown()


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("second", ["take_over", "delete", "stop", "cordon"])
@pytest.mark.parametrize("part", ["step_instances", "step_placement"])
def test_in_the_middle_of_a_step(part: str, second: str) -> None:
    with a_story() as story:
        for at in range(1, STATEMENTS):
            name = f"d{at % 3}"
            story.user(name=name, verb="delete", replicas=0)
            story.midway(name=name, fields=ONE, part=part, at=at, h=at % 3, n=at % 2, second=second)
            story.operator(n=at % 3, verb="uncordon")
            story.work(rounds=2, lines=GOOD)


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("how", ["drop", "cancel"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_struck_at_every_statement(when: Any, how: Any) -> None:
    with a_story() as story:
        for at in range(1, STATEMENTS):
            story.apply(name="d0", fields=ONE if at % 2 else SHARED)
            story.step(part="step_instances", strike=Strike(at=at, when=when, how=how))
            story.step(part="step_placement", strike=Strike(at=at, when=when, how=how))
            story.hub(n=0, act="deliver", strike=Strike(at=at % 4, when=when, how=how))
            story.talk(h=at % 3, line="good", noticed=False)
            story.hub(n=0, act="write", strike=Strike(at=at % 9, when=when, how=how))
            story.work(rounds=1, lines=GOOD)


@pytest.mark.usefixtures("bench")
def test_a_connection_that_is_over_writes_nothing() -> None:
    with a_story() as story:
        for turn in range(3):
            story.process(h=0, pick=turn, what="unhealthy")
            story.change_gpu(h=0, pick=0, mib=16 * GIB)
            story.process(h=0, pick=turn, what="end")
            story.talk(h=0, line="dead", noticed=False)
            story.change_gpu(h=0, pick=0, mib=GPU_MIB)
            story.connect(h=0, n=turn % 2, strike=None)
            story.late(h=0, n=0, pick=turn, what="arrive")
            story.work(rounds=3, lines=GOOD)


@pytest.mark.usefixtures("bench")
def test_an_agent_that_restarts_goes_on_with_what_runs() -> None:
    with a_story() as story:
        for turn in range(3):
            for h in range(3):
                story.trouble(h=h, what="restart", noticed=bool(turn % 2))
                story.connect(h=h, n=turn % 2, strike=None)
            story.process(h=turn, pick=turn, what="end")
            story.work(rounds=2, lines=GOOD)


@pytest.mark.usefixtures("bench")
def test_answers_and_reports_overtake_each_other() -> None:
    with a_story(first=SHARED, second=SHARED) as story:
        for turn in range(4):
            for h in range(3):
                story.process(h=h, pick=turn, what="fail")
            story.work(rounds=2, lines=["swaps"] * 3)
        story.work(rounds=2, lines=GOOD)


@pytest.mark.usefixtures("bench")
def test_a_refused_start_comes_again_once_there_is_room() -> None:
    with a_story(first=ONE, second={"replicas": 0}) as story:
        for h in range(3):
            for gpu in range(2):
                story.change_gpu(h=h, pick=gpu, mib=None)
        story.apply(name="d2", fields={"replicas": 3, "resources": {"gpus": 1}})
        story.work(rounds=2, lines=GOOD)
        for h in range(3):
            for gpu in range(2):
                story.change_gpu(h=h, pick=gpu, mib=GPU_MIB)
        for n in range(12):
            for h in range(3):
                story.late(h=h, n=0, pick=n, what="replay")
        story.work(rounds=2, lines=GOOD)


@pytest.mark.usefixtures("bench")
def test_old_starts_come_again_when_their_ends_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "ENDED_KEPT", 1)
    with a_story(first=ONE, second={"replicas": 0}) as story:
        for _ in range(4):
            for h in range(3):
                story.process(h=h, pick=0, what="fail")
            story.work(rounds=2, lines=GOOD)
        for h in range(3):
            story.process(h=h, pick=0, what="fail")
            story.talk(h=h, line="good", noticed=False)
        story.hub(n=0, act="write", strike=None)
        story.hub(n=1, act="write", strike=None)
        for h in range(3):
            story.talk(h=h, line="good", noticed=False)
            for n in range(3):
                story.late(h=h, n=0, pick=n, what="replay")


@pytest.mark.usefixtures("bench")
def test_a_stop_of_an_old_term_is_refused_and_comes_again() -> None:
    with a_story(first=ONE, second={"replicas": 0}) as story:
        h = story.home()
        story.user(name="d0", verb="delete", replicas=0)
        story.step(part="step_instances", strike=None)
        story.hub(n=h % 2, act="deliver", strike=None)
        story.talk(h=h, line="dead", noticed=True)
        story.take_over(n=1, strike=None)
        story.connect(h=h, n=0, strike=None)
        story.talk(h=h, line="good", noticed=False)
        for n in range(3):
            story.late(h=h, n=0, pick=n, what="replay")
        story.talk(h=h, line="good", noticed=False)
        story.hub(n=0, act="write", strike=None)


@pytest.mark.usefixtures("bench")
def test_an_agent_that_slept_through_its_fence_runs_nothing_beside_what_it_still_runs() -> None:
    with a_story(first={**ONE, "stop_on_disconnect_after": 60}, second={"replicas": 0}) as story:
        h = story.home()
        story.trouble(h=h, what="freeze", noticed=False)
        for seconds in (30, 70, 200, 1):
            story.pass_time(seconds=seconds)
            story.step(part="step", strike=None)
        story.trouble(h=h, what="freeze", noticed=True)
        story.apply(name="d2", fields={"replicas": 6, "resources": {"gpus": 1}})
        story.connect(h=h, n=0, strike=None)
        story.step(part="step", strike=None)
        story.work(rounds=3, lines=GOOD)


@pytest.mark.usefixtures("bench")
def test_a_hello_is_greeted_after_its_sender_has_said_another() -> None:
    with a_story(first={"replicas": 0}, second={"replicas": 0}) as story:
        for h in range(3):
            story.late(h=h, n=0, pick=0, what="dial")
        story.apply(name="d0", fields={"replicas": 6, "resources": {"gpus": 1}})
        story.work(rounds=3, lines=GOOD)
        for n in range(3):
            story.late(h=0, n=0, pick=n, what="greet")
            story.step(part="step_instances", strike=None)
        story.work(rounds=3, lines=GOOD)


@pytest.mark.usefixtures("bench")
def test_a_dead_host_is_removed_and_joins_anew() -> None:
    with a_story() as story:
        for h in range(2):
            story.trouble(h=h, what="power", noticed=True)
            story.step(part="step_workers", strike=None)
            story.pass_time(seconds=70)
            story.work(rounds=2, lines=GOOD)
            story.delete_worker(n=h)
            story.work(rounds=2, lines=GOOD)
            story.trouble(h=h, what="power", noticed=True)
            story.work(rounds=3, lines=GOOD)


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("restart", ["always", "never"])
@pytest.mark.parametrize("what", ["end", "fail"])
def test_one_rank_of_a_gang_ends(restart: str, what: str) -> None:
    with a_story(first={"replicas": 0}, second={"replicas": 0}) as story:
        for pick in range(3):
            story.gang(restart=restart, preempt=False)
            story.work(rounds=2, lines=GOOD)
            story.process(h=pick % 2, pick=0, what=what)
            story.work(rounds=4, lines=GOOD)


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("second", ["take_over", "delete", "stop", "cordon"])
def test_a_move_in_the_middle_of_which_something_happens(second: str) -> None:
    with a_story(first=ONE, second={"replicas": 0}) as story:
        for at in range(1, STATEMENTS):
            story.apply(name="d0", fields=ONE)
            story.work(rounds=3, lines=GOOD)
            story.move(pick=at % 6, also=False)
            story.step(part="step_relocations", strike=None)
            for _ in range(at % 3):
                story.work(rounds=1, lines=GOOD)
            story.interleave(first="step_instances", at=at, second=second, n=at % 2, name="d0", h=at % 3)
            story.operator(n=at % 3, verb="uncordon")
            story.user(name="d0", verb="start", replicas=0)
            story.work(rounds=2, lines=GOOD)


def rolling(version: int, **fields: Any) -> dict[str, Any]:
    base = {"update": "rolling", "rollout": {"ready_for": 0}, "replicas": 2, "resources": {"gpus": 1}}
    return {**base, "env": {"VERSION": str(version)}, "start_timeout": 20, **fields}


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("second", ["take_over", "delete", "stop", "cordon", "pause", "back"])
def test_a_rollout_in_the_middle_of_which_something_happens(second: str) -> None:
    with a_story(first=rolling(0), second={"replicas": 0}) as story:
        for at in range(1, STATEMENTS, 3):
            story.apply(name="d0", fields=rolling(at))
            for _ in range(at % 4):
                story.work(rounds=1, lines=GOOD)
            if second in ("pause", "back"):
                story.step(part="step_instances", strike=Strike(at=at, when="after", how="drop"))
                story.rollout(name="d0", verb="pause") if second == "pause" else story.apply(
                    name="d0", fields=rolling(at - 3)
                )
            else:
                story.interleave(first="step_instances", at=at, second=second, n=at % 2, name="d0", h=at % 3)
            story.work(rounds=3, lines=GOOD)
            story.operator(n=at % 3, verb="uncordon")
            story.user(name="d0", verb="start", replicas=0)
            story.rollout(name="d0", verb="resume")
            story.work(rounds=3, lines=GOOD)


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("trouble", ["preempt", "power", "gang"])
def test_a_rollout_whose_gpus_are_taken_or_lost(trouble: str) -> None:
    gang = {"resources": {"gpus": 3, "gpu_memory": "30GiB", "max_workers": 2}, "replicas": 1}
    fields = gang if trouble == "gang" else {"replicas": 4}
    with a_story(first=rolling(0, **fields), second={"replicas": 0}) as story:
        story.work(rounds=3, lines=GOOD)
        for turn in range(1, 5):
            story.apply(name="d0", fields=rolling(turn, **fields))
            story.work(rounds=turn % 3, lines=GOOD)
            if trouble == "preempt":
                story.apply(
                    name="d2", fields={"replicas": 2, "resources": {"gpus": 1}, "priority": 200, "preempt": True}
                )
            else:
                story.trouble(h=turn % 3, what="power", noticed=True)
                story.pass_time(seconds=70)
            story.work(rounds=4, lines=GOOD)
            if trouble == "preempt":
                story.user(name="d2", verb="delete", replicas=0)
            else:
                story.pass_time(seconds=200)
                story.work(rounds=3, lines=GOOD)
                story.trouble(h=turn % 3, what="power", noticed=True)
            story.work(rounds=4, lines=GOOD)


@pytest.mark.usefixtures("bench")
def test_a_rollout_fails_is_aborted_and_undone() -> None:
    canary = {"rollout": {"ready_for": 0, "canary": {"weight": 30, "for": 20}, "abort": {}}}
    with a_story(first=rolling(0, **canary), second={"replicas": 0}) as story:
        story.work(rounds=3, lines=GOOD)
        story.apply(name="d0", fields=rolling(1, **canary))
        story.work(rounds=3, lines=GOOD)
        story.rollout(name="d0", verb="blame")
        story.work(rounds=3, lines=GOOD)
        story.rollout(name="d0", verb="undo")
        story.work(rounds=3, lines=GOOD)
        story.apply(name="d0", fields=rolling(2))
        for _ in range(6):
            story.step(part="step", strike=None)
            for h in range(3):
                story.hub(n=h % 2, act="deliver", strike=None)
                for pick in range(2):
                    story.talk(h=h, line="good", noticed=False)
                    story.process(h=h, pick=pick, what="fail")
            story.hub(n=0, act="write", strike=None)
            story.hub(n=1, act="write", strike=None)
            story.pass_time(seconds=30)
        story.work(rounds=3, lines=GOOD)


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("second", ["take_over", "delete", "stop"])
def test_a_wake_in_the_middle_of_which_something_happens(second: str) -> None:
    sleepy = {"replicas": {"min": 0, "max": 2}, "resources": {"gpus": 1},
              "scaling": {"target": 1, "window": 1, "down_window": 5, "idle_after": 10}}  # fmt: skip
    with a_story(first=sleepy, second={"replicas": 0}) as story:
        for at in range(1, STATEMENTS, 3):
            story.apply(name="d0", fields=sleepy)
            story.requests(name="d0", in_flight=0, waiting=1 + at % 3)
            part = "step_scaling" if at % 2 else "step_instances"
            story.interleave(first=part, at=at % 12 + 1, second=second, n=at % 2, name="d0", h=0)
            story.user(name="d0", verb="start", replicas=0)
            story.work(rounds=3, lines=GOOD)
            story.requests(name="d0", in_flight=0, waiting=0)
            for _ in range(4):
                story.pass_time(seconds=6)
                story.work(rounds=1, lines=GOOD)


@pytest.mark.timeout(TIMEOUT_S)
def test_the_ledger_holds_whatever_happens(bench: Bench) -> None:
    run_state_machine_as_test(LedgerMachine, settings=machine_settings())
    missing = [what for what in MUST_HAPPEN if not bench.tally[what]]
    assert not missing, f"never happened, so nothing is proven of it: {missing}"
