"""A cluster whose gateway serves deployments, and what their simulated engines saw."""

import asyncio
from typing import Any

from support.processes.cluster import Cluster

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "one two"}]
# A request to each endpoint, without its model.
JSON_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": USER, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": USER},
    "/v1/embeddings": {"input": "x"},
    "/v1/rerank": {"query": "q", "documents": ["a", "b"]},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/classify": {"input": "x"},
    "/v1/pooling": {"input": "x"},
    "/v1/tokenize": {"prompt": "x"},
    "/v1/detokenize": {"tokens": [1]},
    "/v1/audio/speech": {"input": "x", "voice": "v"},
    "/v1/images/generations": {"prompt": "x"},
}
JSON_BODIES |= {
    path.removeprefix("/v1"): JSON_BODIES[path]
    for path in ("/v1/rerank", "/v1/score", "/v1/classify", "/v1/pooling", "/v1/tokenize", "/v1/detokenize")
}
JSON_BODIES |= {"/v2/rerank": JSON_BODIES["/v1/rerank"], "/v2/embed": {"texts": ["a", "b"], "input_type": "query"}}


async def serve(cluster: Cluster, **deployments: dict[str, Any]) -> None:
    """Starts a controller, an agent and these deployments, and waits until their replicas run."""
    await cluster.start_controller()
    await cluster.start_agent("gpu-1")
    for name, spec in deployments.items():
        await cluster.apply(name, **{"resources": {"gpus": 0}, **spec})
    for name, spec in deployments.items():
        if spec.get("replicas", 1) in range(1, 100):  # a range may sleep
            await cluster.running(name)


async def states(cluster: Cluster, key: str = "") -> dict[str, dict[str, Any]]:
    """What `GET /v1/models` says of each name."""
    async with cluster.session.get("/v1/models", headers=bearer(key)) as answer:
        assert answer.status == 200
        return {one["id"]: one["gpuward"] for one in (await answer.json())["data"]}


async def listed(cluster: Cluster, *names: str) -> None:
    """Waits until the gateway says that these run."""

    async def all_run() -> bool:
        found = await states(cluster)
        return all(found.get(name, {}).get("state") == "running" for name in names)

    await cluster.until(all_run, f"{names} run")


def bearer(key: str) -> dict[str, str]:
    """The header of a key; the administrator's where there is none."""
    return {"Authorization": f"Bearer {key}"} if key else {}


async def make_key(cluster: Cluster, **fields: Any) -> str:
    """A key that may send requests."""
    return str((await cluster.post("/keys", {"role": "inference", **fields}))["key"])


async def engine_urls(cluster: Cluster, deployment: str) -> list[str]:
    """Where its engines listen."""
    names = {one["name"] for one in await cluster.instances(deployment)}
    found = {name: process.cmdline() for name, process in cluster.engines().items() if name in names}
    return [f"http://127.0.0.1:{argv[argv.index('--port') + 1]}" for _, argv in sorted(found.items())]


async def counters(cluster: Cluster, deployment: str) -> list[dict[str, Any]]:
    """What its engines have counted."""

    async def one(url: str) -> dict[str, Any]:
        async with cluster.session.get(url + "/simulated/counters") as answer:
            return dict(await answer.json())

    return await asyncio.gather(*(one(url) for url in await engine_urls(cluster, deployment)))


async def last_body(cluster: Cluster, deployment: str) -> bytes:
    """The body that its only engine saw last."""
    (url,) = await engine_urls(cluster, deployment)
    async with cluster.session.get(url + "/simulated/last-body") as answer:
        return await answer.read()
