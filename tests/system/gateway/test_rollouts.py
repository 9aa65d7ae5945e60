"""Rollouts on real processes under load: no request fails, and errors of a new revision stop it."""

import asyncio
import os
import sys
from collections import Counter
from typing import Any

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.sleeping import CHAT, ask, body

REPLICAS = 4
STREAMS = 20
ROLLING: dict[str, Any] = {
    "update": "rolling", "resources": {"gpus": 1}, "rollout": {"ready_for": "1s"}, "args": {"load_seconds": 0.5},
}  # fmt: skip


async def cli(cluster: Cluster, *argv: str) -> tuple[int, str]:
    """Exit code and output of a client verb."""
    key = (cluster.data_dir / "admin.key").read_text().strip() if (cluster.data_dir / "admin.key").exists() else ""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUWARD_")}
    env |= {"GPUWARD_URL": cluster.url, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    env |= {"GPUWARD_API_KEY": key or cluster.session.headers["Authorization"].removeprefix("Bearer ")}
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli", *argv, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(done.communicate(), 60)
    return done.returncode or 0, output.decode()


async def begin(cluster: Cluster, **spec: Any) -> None:
    await cluster.start_controller()
    await cluster.start_agent("gpu-1", gpus=8)
    await cluster.apply("chat", **{**ROLLING, **spec})
    code, told = await cli(cluster, "rollout", "status", "chat", "--timeout", "60s")
    assert (code, told.splitlines()[-1]) == (0, "chat: revision 1 is rolled out")


async def stream(cluster: Cluster, seconds: float) -> int:
    """The number of events of a long stream; -1: it broke off or failed."""
    told = f"tokens={round(seconds * 10)} token_seconds=0.1"
    timeout = aiohttp.ClientTimeout(total=4 * seconds)
    async with cluster.session.post(CHAT, json=body(told, stream=True), timeout=timeout) as answer:
        text = (await answer.read()).decode()
    done = answer.status == 200 and "data: [DONE]" in text and '"error"' not in text
    return text.count("data:") if done else -1


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("stream_s", "every_s"),
    [pytest.param(12.0, 0.05, marks=pytest.mark.cases), pytest.param(60.0, 0.02, marks=pytest.mark.nightly)],
)
async def test_g53_a_rollout_under_load_fails_no_request_and_keeps_its_bounds(
    cluster: Cluster, stream_s: float, every_s: float
) -> None:
    await begin(cluster, replicas=REPLICAS)
    over = asyncio.Event()
    seen: list[tuple[int, int]] = []  # running ones, and all

    async def watch() -> None:
        while not over.is_set():
            phases = await cluster.phases("chat")
            seen.append((phases.count("running"), len(phases)))
            await asyncio.sleep(0.1)

    async def load() -> Counter[Any]:
        answers: Counter[Any] = Counter()

        async def one() -> None:
            status, answer = await ask(cluster)
            answers[status if status == 200 else (status, str(answer))] += 1

        async with asyncio.TaskGroup() as group:
            while not over.is_set():
                group.create_task(one())
                await asyncio.sleep(every_s)
        return answers

    watching, loading = asyncio.create_task(watch()), asyncio.create_task(load())
    streams = [asyncio.create_task(stream(cluster, stream_s)) for _ in range(STREAMS)]
    await asyncio.sleep(1.0)
    await cluster.apply("chat", **{**ROLLING, "replicas": REPLICAS, "args": {"load_seconds": 0.4}})
    code, told = await cli(cluster, "rollout", "status", "chat", "--no-watch")
    assert code == 0, told
    began = asyncio.get_running_loop().time()
    while (await cluster.get("/deployments/chat"))["status"]["rollout"]["state"] != "complete":
        assert asyncio.get_running_loop().time() - began < 10 * stream_s + 90, seen[-1]
        await asyncio.sleep(0.2)
    over.set()
    answers = await loading
    await watching
    assert set(answers) == {200}, answers
    ends = await asyncio.gather(*streams)
    assert min(ends) > stream_s * 10, "each ended by itself"
    assert min(running for running, _ in seen) >= REPLICAS
    assert max(all_ for _, all_ in seen) <= REPLICAS + 1
    assert {i["spec"]["revision"] for i in await cluster.instances("chat")} == {2}
    await cluster.audit()


@pytest.mark.cases
@pytest.mark.timeout(240)
async def test_g56_errors_abort_a_canary_and_undo_goes_back(cluster: Cluster) -> None:
    rollout = {"ready_for": "0s", "canary": {"weight": 50, "for": "1h"}, "abort": {"after_requests": 10}}
    await begin(cluster, rollout=rollout)
    await cluster.apply("chat", **{**ROLLING, "rollout": rollout, "args": {"refuse": 500}})

    async def state() -> Any:
        return (await cluster.get("/deployments/chat"))["status"]["rollout"]

    async def shares() -> bool:
        return bool((await state())["canary_until"])

    await cluster.until(shares, "the canary's replica is ready")
    await asyncio.sleep(1.0)  # the gateway knows
    by_session: dict[str, set[int]] = {}
    for n in range(16):
        session = f"session-{n % 4}"
        headers = {"x-session-id": session}
        async with cluster.session.post(CHAT, json=body(), headers=headers) as answer:
            by_session.setdefault(session, set()).add(answer.status)
    assert all(len(statuses) == 1 for statuses in by_session.values()), by_session

    async def aborted() -> bool:
        await ask(cluster)
        return (await state())["state"] == "aborted"

    await cluster.until(aborted, "the rollout is aborted", 40.0)
    assert (await state())["errors"] >= 5
    code, told = await cli(cluster, "rollout", "status", "chat")
    assert (code, "rollout_aborted" in told, "rollout undo chat" in told) == (1, True, True)
    code, told = await cli(cluster, "rollout", "undo", "chat")
    assert (code, told) == (0, "deployment/chat goes back to revision 1\n")
    code, told = await cli(cluster, "rollout", "status", "chat", "--timeout", "60s")
    assert code == 0, told
    assert {status for status, _ in [await ask(cluster) for _ in range(20)]} == {200}
    code, told = await cli(cluster, "rollout", "history", "chat")
    assert code == 0
    assert [line.split()[0] for line in told.splitlines()] == ["REVISION", "1", "2"]
