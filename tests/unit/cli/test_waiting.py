import asyncio

import pytest

from cli import waiting
from cli.answers import parse
from cli.client import connect
from cli.connection import Connection
from cli.errors import TimedOutError
from cli.waiting import Narrator, Target, Verdict, judge, until_running
from schemas.api.deployments import DeploymentView
from support.api_double import KEY, ApiDouble, deployment, serving


def view(phase: str, **changes):
    raw = deployment("d", phase, spec={"replicas": changes.pop("replicas", 2)}, **changes)
    raw["uid"] = "u"
    return parse(DeploymentView, raw)


@pytest.mark.parametrize(
    ("phase", "replicas", "verdict"),
    [
        ("pending", 2, Verdict.WAITING),
        ("progressing", 2, Verdict.WAITING),
        ("degraded", 2, Verdict.WAITING),
        ("running", 2, Verdict.DONE),
        ("succeeded", 2, Verdict.DONE),
        ("failed", 2, Verdict.FAILED),
        ("stopped", 2, Verdict.FAILED),
        ("stopped", 0, Verdict.DONE),
    ],
)
def test_each_phase_is_judged(phase, replicas, verdict):
    assert judge(Target("d", "u", 1), view(phase, replicas=replicas))[0] is verdict


def test_a_phase_of_an_earlier_generation_decides_nothing():
    assert judge(Target("d", "u", 2), view("failed"))[0] is Verdict.WAITING


def test_gone_or_another_of_the_same_name_is_a_failure():
    assert judge(Target("d", "u", 1), None)[0] is Verdict.FAILED
    assert judge(Target("d", "another", 1), view("running"))[0] is Verdict.FAILED


def test_a_line_is_told_once():
    told: list[str] = []
    narrator = Narrator(told.append)
    for line in ("one", "one", "two"):
        narrator.tell("d", line)
    narrator.forget("d")
    narrator.tell("d", "two")
    assert told == ["one", "two", "two"]


async def test_a_wait_outlives_the_controller(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting, "POLL_S", 0.01)
    double = ApiDouble()
    double.add(deployment("d", "pending"))
    target = Target("d", double.objects["deployments"]["d"]["uid"], 1)
    spoke, away = asyncio.Event(), asyncio.Event()
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        spoke.set()
        if "still trying" in line:
            away.set()

    with serving(double):
        first = Connection(double.url, KEY)
        async with connect(first) as api:
            wait = asyncio.create_task(until_running(api, [target], 30, Narrator(tell)))
            async with asyncio.timeout(10):
                await spoke.wait()
            api.url = "http://127.0.0.1:1"  # nobody listens there
            async with asyncio.timeout(10):
                await away.wait()
            double.objects["deployments"]["d"]["status"]["phase"] = "running"
            api.url = first.url
            await wait
    assert told[-1].startswith("d: running")


async def test_a_wait_for_nobody_ends_at_its_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting, "POLL_S", 0.01)
    async with connect(Connection("http://127.0.0.1:1", None)) as api:
        with pytest.raises(TimedOutError, match="d"):
            await until_running(api, [Target("d", "u", 1)], 0.1, Narrator(lambda _line: None))
