from collections.abc import Callable

import pytest

from cli.errors import TimedOutError
from cli.transport.client import connected
from cli.transport.connection import Connection
from cli.transport.paths import parse
from cli.transport.servers import NoAnswerError
from cli.waiting import wait as wait_module
from cli.waiting.states import Goal, Target, WaitState, wait_state
from cli.waiting.wait import ProgressLog, until_running
from schemas.api.deployments import DeploymentView
from support.builders.api_objects import deployment, instance
from support.standins.api import KEY, ApiDouble, serving


def view(phase: str, *, restart="always", **changes):
    raw = deployment("d", phase, spec={"replicas": changes.pop("replicas", 2), "restart": restart}, **changes)
    raw["uid"] = "u"
    return parse(DeploymentView, raw)


@pytest.mark.parametrize(
    ("phase", "replicas", "state"),
    [
        ("pending", 2, WaitState.WAITING),
        ("progressing", 2, WaitState.WAITING),
        ("degraded", 2, WaitState.WAITING),
        ("running", 2, WaitState.DONE),
        ("succeeded", 2, WaitState.DONE),
        ("failed", 2, WaitState.FAILED),
        ("stopped", 2, WaitState.FAILED),
        ("stopped", 0, WaitState.DONE),
        ("asleep", {"min": 0, "max": 2}, WaitState.DONE),
        ("stopped", {"min": 0, "max": 2}, WaitState.FAILED),
    ],
)
def test_each_phase_has_its_verdict(phase, replicas, state):
    assert wait_state(Target("d", "u", 1), view(phase, replicas=replicas))[0] is state


@pytest.mark.parametrize("restart", ["never", "on_failure"])
@pytest.mark.parametrize(
    ("phase", "state"),
    [
        ("pending", WaitState.WAITING),
        ("progressing", WaitState.WAITING),
        ("running", WaitState.WAITING),
        ("degraded", WaitState.WAITING),
        ("asleep", WaitState.WAITING),
        ("succeeded", WaitState.DONE),
        ("failed", WaitState.FAILED),
        ("stopped", WaitState.FAILED),
    ],
)
def test_each_phase_of_a_task_has_its_verdict(phase, state, restart):
    assert wait_state(Target("d", "u", 1), view(phase, restart=restart), Goal.SUCCEEDED)[0] is state


def test_a_server_never_succeeds():
    state, line = wait_state(Target("d", "u", 1), view("running"), Goal.SUCCEEDED)
    assert state is WaitState.FAILED
    assert "restart" in line


def test_a_phase_of_an_earlier_generation_does_not_count():
    assert wait_state(Target("d", "u", 2), view("failed"))[0] is WaitState.WAITING


def test_a_deleted_or_recreated_deployment_is_a_failure():
    assert wait_state(Target("d", "u", 1), None)[0] is WaitState.FAILED
    assert wait_state(Target("d", "another", 1), view("running"))[0] is WaitState.FAILED


def test_an_unchanged_line_is_printed_once():
    printed: list[str] = []
    progress = ProgressLog(printed.append)
    for line in ("one", "one", "two"):
        progress.report("d", line)
    progress.forget("d")
    progress.report("d", "two")
    assert printed == ["one", "two", "two"]


class Away:
    """Nothing listens there."""

    def exchange(self, *_asked, until):
        del until
        raise NoAnswerError("connection refused")


def test_a_wait_survives_a_restart_of_the_controller(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wait_module, "POLL_S", 0.01)
    double = ApiDouble()
    double.add(deployment("d", "pending"))
    target = Target("d", double.objects["deployments"]["d"]["uid"], 1)
    printed: list[str] = []

    def write(line: str) -> None:
        printed.append(line)
        if "retrying" in line:
            double.objects["deployments"]["d"]["status"]["phase"] = "running"
            api.servers = there
        elif "pending" in line:
            api.servers = Away()

    with serving(double), connected(Connection(double.url, KEY)) as api:
        there = api.servers
        until_running(api, [target], 30, ProgressLog(write))
    assert any("retrying" in line for line in printed)
    assert printed[-1].startswith("d: running")


def test_a_wait_without_a_controller_times_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wait_module, "POLL_S", 0.01)
    with (
        connected(Connection("http://127.0.0.1:1", None)) as api,
        pytest.raises(TimedOutError, match="d"),
    ):
        until_running(api, [Target("d", "u", 1)], 0.1, ProgressLog(lambda _line: None))


@pytest.fixture
def changes(api: ApiDouble):
    """Runs a step at the n-th read of any deployment."""
    reads = 0
    steps: dict[int, Callable[[], object]] = {}

    def script(kind: str, _name: str) -> None:
        nonlocal reads
        if kind == "deployments":
            reads += 1
            steps.get(reads, lambda: None)()

    api.script = script
    return steps


def test_the_verb_waits_for_all_of_several(gpuward, api, changes):
    api.add(deployment("a", "pending"), deployment("b", "running"))
    changes[6] = lambda: api.objects["deployments"]["a"]["status"].update(phase="running")
    done = gpuward("wait", "a", "b", "a", "--timeout", "20s")
    assert done.exit_code == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("a: running")
    assert sum(line.startswith("b: running") for line in lines) == 1


def test_the_verb_ends_with_1_where_it_can_no_longer_come(gpuward, api):
    api.add(deployment("a", "failed"))
    done = gpuward("wait", "a")
    assert done.exit_code == 1
    assert "a: failed" in done.stderr


def test_stopped_means_that_no_instance_is_left(gpuward, api, changes):
    of = deployment("a", "stopped", intents=[])
    last = instance(of, 1, "stopping")
    api.add(of, last)
    changes[4] = lambda: api.objects["instances"].pop(last["name"])
    done = gpuward("wait", "a", "--for", "stopped", "--timeout", "20s")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.splitlines() == [f"a: waiting for the end of {last['name']}", "a: stopped"]


def test_what_does_not_stop_times_out_with_4(gpuward, api):
    api.add(deployment("a", "running"))
    done = gpuward("wait", "a", "--for", "stopped", "--timeout", "0.2s")
    assert done.exit_code == 4
    assert "still not stopped: a" in done.stderr


def test_a_finished_task_holds_nothing_when_it_is_stopped(gpuward, api):
    of = deployment("a", "stopped")
    api.add(of, instance(of, 1, "succeeded"))
    assert gpuward("wait", "a", "--for", "stopped").exit_code == 0


def test_gone_means_this_one_and_not_its_successor(gpuward, api, changes):
    api.add(deployment("a", "deleting"))
    changes[3] = lambda: api.objects["deployments"]["a"].update(uid="another")
    done = gpuward("wait", "a", "never-there", "--for", "gone", "--timeout", "20s")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "a: gone"


def test_an_unknown_name_exits_with_3(gpuward):
    assert gpuward("wait", "a").exit_code == 3
    assert gpuward("wait", "a", "--for", "stopped").exit_code == 3
    assert gpuward("wait").exit_code == 2
