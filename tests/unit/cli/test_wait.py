import asyncio

import pytest

from cli import wait as wait_module
from cli.api import parse
from cli.client import NoAnswerError
from cli.connection import Connection
from cli.errors import TimedOutError
from cli.loop_transport import connect
from cli.wait import ProgressLog, Target, WaitState, until_running, wait_state
from schemas.api.deployments import DeploymentView
from support.standins.api import KEY, ApiDouble, deployment, serving


def view(phase: str, **changes):
    raw = deployment("d", phase, spec={"replicas": changes.pop("replicas", 2)}, **changes)
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

    async def exchange(self, *_asked):
        raise NoAnswerError("connection refused")


async def test_a_wait_survives_a_restart_of_the_controller(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wait_module, "POLL_S", 0.01)
    double = ApiDouble()
    double.add(deployment("d", "pending"))
    target = Target("d", double.objects["deployments"]["d"]["uid"], 1)
    spoke, away = asyncio.Event(), asyncio.Event()
    printed: list[str] = []

    def write(line: str) -> None:
        printed.append(line)
        spoke.set()
        if "retrying" in line:
            away.set()

    with serving(double):
        async with connect(Connection(double.url, KEY)) as api:
            there = api.transport
            wait = asyncio.create_task(until_running(api, [target], 30, ProgressLog(write)))
            async with asyncio.timeout(10):
                await spoke.wait()
            api.transport = Away()
            async with asyncio.timeout(10):
                await away.wait()
            double.objects["deployments"]["d"]["status"]["phase"] = "running"
            api.transport = there
            await wait
    assert printed[-1].startswith("d: running")


async def test_a_wait_without_a_controller_times_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wait_module, "POLL_S", 0.01)
    async with connect(Connection("http://127.0.0.1:1", None)) as api:
        with pytest.raises(TimedOutError, match="d"):
            await until_running(api, [Target("d", "u", 1)], 0.1, ProgressLog(lambda _line: None))
