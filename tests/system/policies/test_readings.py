"""What was not read is not known, and what cannot be is not believed: readings of all kinds, on real processes."""

import asyncio
import math
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from copy import deepcopy
from datetime import datetime
from functools import partial
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from rig.agent import AgentDouble
from schemas.wire import SamplePeriod
from support.processes.cluster import Cluster, Json
from support.processes.faults import all_of
from support.processes.policies import IDLE_POLICY, SAMPLE_S, SAMPLING, WHOLE, WINDOW_S, PolicyWatch, seconds

pytestmark = pytest.mark.cases

ENV = {**SAMPLING, "GPUWARD_UNREACHABLE_AFTER_S": "60", "GPUWARD_LOST_AFTER_S": "600"}
# Little of the window suffices: what keeps these running is not a lack of coverage.
LITTLE = {**IDLE_POLICY, "min_coverage": 0.5}
TAIL_S = 45.0  # the telemetry of one host, after the start of its agent
TAIL_AT_S = 22.0  # of the window, when it ends
ASKED_EVERY_S = 7.0
IMPOSSIBLE_S = 12.0  # of an engine's gauge
LATE_S = 12.0  # generous: the machine may be busy
# An engine whose gauge tells what no engine can have, and then the truth.
GAUGED = f"""
import http.server, sys, time
began = time.monotonic()
class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        value = ("1e12", "NaN", "0")[min(int((time.monotonic() - began) / {IMPOSSIBLE_S / 2}), 2)]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"vllm:num_requests_running " + value.encode() + b"\\n")
    def log_message(self, *_): ...
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Engine).serve_forever()
"""


@pytest.fixture
async def doubles() -> AsyncIterator[dict[str, AgentDouble]]:
    """Two hosts whose readings the test sets. They have no controller yet."""
    timeout = aiohttp.ClientTimeout(sock_connect=10)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        yield {name: AgentDouble(name, http=http, gpus=2, beat_s=2.0, sample_s=SAMPLE_S) for name in ("late", "odd")}


@asynccontextmanager
async def connected(cluster: Cluster, doubles: Iterable[AgentDouble]) -> AsyncIterator[None]:
    """They join and run until the end of the context."""
    async with asyncio.TaskGroup() as group:
        tasks = []
        for one in doubles:
            one.url = cluster.url
            await one.join((await cluster.post("/tokens", {}))["token"])
            tasks.append(group.create_task(one.run(), name=one.name))
        for one in doubles:
            await cluster.until(partial(cluster.worker_is, one.name, "ready"), f"{one.name} is ready")
        yield
        for task in tasks:
            task.cancel()


async def test_only_what_was_read_and_can_be_is_evidence(
    cluster: Cluster, watch: PolicyWatch, doubles: dict[str, AgentDouble]
) -> None:
    await cluster.start_controller(**ENV)
    await watch.put("stop-idle", default=True, **IDLE_POLICY)
    await cluster.start_agent("host")
    async with connected(cluster, doubles.values()):
        await all_of(
            _silent_tail(watch),
            _trickle(watch, doubles["late"]),
            _impossible_and_untakeable(watch, doubles["odd"]),
            _impossible_gauge(watch),
            _short_requests(watch),
            _requests_in_evidence(watch),
        )
        await cluster.audit()


async def _silent_tail(watch: PolicyWatch) -> None:
    """The telemetry ends in mid-window while the agent lives (U46)."""
    cluster, began = watch.cluster, time.monotonic()
    await cluster.start_agent("tail", gpus=1, host={"telemetry_seconds": TAIL_S})
    load_s = max(TAIL_S - TAIL_AT_S - 2.0 - (time.monotonic() - began), 0.0)
    spec: Json = {"placement": {"workers": ["tail"]}, "args": {"load_seconds": load_s}}
    await watch.idle("tail", **deepcopy(spec), utilization_policy=LITTLE)
    (served,) = await watch.serving("tail", limit_s=60.0)
    await watch.pass_until(served.full_at() + seconds(1))
    # It is judged anew: enough of its window was read, only the end was not.
    await watch.idle("tail", **deepcopy(spec), utilization_policy={**LITTLE, "min_coverage": 0.55})

    async def is_stale() -> bool:
        return (await watch.condition("tail"))["reason"] == "stale"

    await cluster.until(is_stale, "the samples are stale", 8.0)
    await watch.pass_until(served.full_at() + seconds(20))
    await watch.untouched(["tail"])
    condition = await watch.condition("tail")
    assert condition["status"] == "unknown", condition
    assert "no data since" in condition["message"], condition
    assert await cluster.worker_is("tail", "ready")
    assert await watch.serving("tail") == [served]


async def _trickle(watch: PolicyWatch, worker: AgentDouble) -> None:
    """A backlog arrives slowly, the oldest first: nothing is stopped until it has caught up (U46)."""
    await watch.idle("late", placement={"workers": ["late"]}, utilization_policy=LITTLE)
    (served,) = await watch.serving("late")
    await watch.pass_until(served.since + seconds(8))
    worker.keeps_samples = True
    await watch.pass_until(served.full_at() + seconds(8))
    await watch.untouched(["late"])
    arriving = asyncio.create_task(worker.trickle(0.6))
    reasons = set()
    while not arriving.done():
        reasons.add((await watch.condition("late"))["reason"])
        await _not_acted_while_stale(watch, "late", worker.uuids)
        await asyncio.sleep(0.2)
    await arriving
    assert "stale" in reasons, reasons
    event = await watch.only_event("policy_stop", "late")
    await watch.check_not_early(event, [served])
    (gpu,) = event["evidence"]["gpus"]
    assert gpu["coverage"] > 0.8, "the backlog counts once it has arrived"


async def _not_acted_while_stale(watch: PolicyWatch, name: str, gpus: tuple[str, ...]) -> None:
    (row,) = await watch.rows(
        """select extract(epoch from clock_timestamp() - max(at))::float8 as age,
                  (select count(*) from policy_actions where deployment = $1) as actions
             from samples where device = any($2)""",
        name,
        list(gpus),
    )
    assert row["actions"] == 0 or row["age"] < 8, dict(row)


async def _impossible_and_untakeable(watch: PolicyWatch, worker: AgentDouble) -> None:
    """Impossible percentages (U48), then a backlog with a period that cannot be taken (U49): all else goes on."""
    await watch.idle("odd", placement={"workers": ["odd"]})
    (served,) = await watch.serving("odd")
    (own,), other = served.gpus, next(uuid for uuid in worker.uuids if uuid not in served.gpus)
    worker.percent[other] = 7.0
    await watch.pass_until(served.since + seconds(3))
    for percent in (101.0, -1.0, 2.0**32, math.nan):
        worker.percent[own] = percent
        await asyncio.sleep(1.1)
    assert await _utilization(watch, own) is None
    assert await _utilization(watch, other) == 7.0
    worker.percent[own] = 0.0
    await asyncio.sleep(2 * SAMPLE_S)
    worker.keeps_samples = True
    await asyncio.sleep(3 * SAMPLE_S)
    await worker.trickle(0.1, _spoiled)
    back_at = await watch.now()
    conditions = (await watch.cluster.get("/workers/odd"))["status"]["conditions"]
    assert [one["reason"] for one in conditions] == ["samples_dropped"], conditions
    event = await watch.only_event("policy_stop", "odd", 90.0)
    await watch.check_not_early(event, [served])
    (gpu,) = event["evidence"]["gpus"]
    assert 0.8 <= gpu["coverage"] < 1, gpu
    assert gpu["highest"] == 0, gpu
    await _uninterrupted(watch, other, served.since, back_at, lost=1)
    assert not worker.ended.is_set(), "the connection stays"
    assert await _count(watch, "agent_message_malformed") == 0
    assert await _metric(watch.cluster, "gpuward_impossible_readings_total") >= 4
    assert await _metric(watch.cluster, "gpuward_sampling_periods_dropped_total") == 1


def _spoiled(period: SamplePeriod) -> SamplePeriod:
    """The same period, from the future of its own agent."""
    return replace(period, sampled_s=period.sampled_s + 3600)


async def _uninterrupted(watch: PolicyWatch, gpu: str, since: datetime, until: datetime, *, lost: int) -> None:
    """Checks that of this GPU no more than so many periods are missing."""
    rows = await watch.rows(
        "select read_s from samples where device = $1 and at between $2 and $3 and max = 7", gpu, since, until
    )
    read_s = sum(row["read_s"] for row in rows)
    assert read_s >= (until - since).total_seconds() - (lost + 5) * SAMPLE_S, (read_s, since, until)


async def _utilization(watch: PolicyWatch, gpu: str) -> Any:
    return (await watch.cluster.get(f"/gpus/{gpu}"))["status"]["utilization"]


async def _count(watch: PolicyWatch, reason: str) -> int:
    (row,) = await watch.rows("select count(*) from events where reason = $1", reason)
    return int(row["count"])


async def _metric(cluster: Cluster, name: str) -> float:
    async with cluster.session.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def _impossible_gauge(watch: PolicyWatch) -> None:
    """Requests are unknown as long as an engine's gauge tells what cannot be (U48)."""
    command = [sys.executable, "-c", GAUGED, "{port}"]
    placement = {"workers": ["host"]}
    await watch.cluster.apply("gauged", engine="custom", command=command, resources=WHOLE, placement=placement)
    (served,) = await watch.serving("gauged")
    event = await watch.only_event("policy_stop", "gauged", 90.0)
    await watch.check_not_early(event, [served], IMPOSSIBLE_S / 2 + WINDOW_S * 0.8)
    assert event["evidence"]["requests_seen"] == 0, event
    assert await _count(watch, "agent_message_malformed") == 0
    (row,) = await watch.rows("select session from workers where name = 'host'")
    assert row["session"] == 1, "no reconnection"


async def _ask(cluster: Cluster, name: str) -> tuple[int, Json, bool]:
    """A short request: the status, the body, and whether an answer promises that waiting helps."""
    async with cluster.session.post("/v1/completions", json={"model": name, "prompt": "x", "max_tokens": 1}) as answer:
        return answer.status, await answer.json(), "Retry-After" in answer.headers


async def _asked_until(watch: PolicyWatch, name: str, until: datetime) -> list[datetime]:
    """Asks now and then, and returns when each answer was there."""
    asked = []
    while await watch.now() < until:
        status, body, _ = await _ask(watch.cluster, name)
        assert (status, body.get("model")) == (200, name), body
        asked.append(await watch.now())
        await asyncio.sleep(ASKED_EVERY_S)
    return asked


async def _short_requests(watch: PolicyWatch) -> None:
    """Short requests keep it busy (U47); without them it is stopped, and says so to those that ask (U52)."""
    cluster, name = watch.cluster, "asked"
    await watch.idle(name, 5, placement={"workers": ["host"]})
    (served,) = await watch.serving(name)
    asked = await _asked_until(watch, name, served.full_at() + seconds(10))
    await watch.untouched([name])
    condition = await watch.condition(name)
    assert (condition["status"], condition["reason"]) == ("false", "requests"), condition
    event = await watch.only_event("policy_stop", name, 60.0)
    full_at = asked[-1] + seconds(WINDOW_S)
    assert full_at - seconds(0.5) <= event["at"] <= full_at + seconds(LATE_S), (event, asked[-1])
    assert event["evidence"]["requests_seen"] == 0
    assert abs((_last_request(event) - asked[-1]).total_seconds()) <= SAMPLE_S + 2, (event, asked[-1])
    await _refused_until_started(cluster, name)


def _last_request(event: Json) -> datetime:
    return datetime.fromisoformat(event["evidence"]["last_request_at"])


async def _refused_until_started(cluster: Cluster, name: str) -> None:
    await cluster.until(lambda: cluster.phase_is(name, "stopped"), f"{name} is stopped")

    async def refused() -> bool:
        return (await _ask(cluster, name))[1].get("error", {}).get("code") == "stopped_by_policy"

    await cluster.until(refused, "the gateway knows it")
    status, body, waiting_helps = await _ask(cluster, name)
    assert (status, waiting_helps) == (503, False), body
    assert body["error"]["details"]["policy"] == "stop-idle"
    for told in ("stop-idle", f"gpuward start {name}"):
        assert told in body["error"]["message"], body
    await cluster.post(f"/deployments/{name}/start")
    await cluster.running(name)

    async def answers() -> bool:
        return (await _ask(cluster, name))[0] == 200

    await cluster.until(answers, f"{name} answers again")


async def _requests_in_evidence(watch: PolicyWatch) -> None:
    """An action in spite of requests names their number in the window, and the time of the last (U47)."""
    name = "ignored"
    policy = {**IDLE_POLICY, "ignore_requests": True}
    await watch.idle(name, 5, placement={"workers": ["host"]}, utilization_policy=policy)
    (served,) = await watch.serving(name)
    asked = await _asked_until(watch, name, served.full_at() - seconds(5))
    event = await watch.only_event("policy_stop", name)
    await watch.check_not_early(event, [served])
    assert abs(event["evidence"]["requests_seen"] - len(asked)) <= 1, (event, asked)
    assert abs((_last_request(event) - asked[-1]).total_seconds()) <= SAMPLE_S + 2, (event, asked[-1])
    assert "requests are ignored" in event["message"]
