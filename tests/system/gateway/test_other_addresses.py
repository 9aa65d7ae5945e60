"""Requests that name a path otherwise than most: absolute targets, mistaken base URLs, pages of other origins."""

import asyncio
from typing import Any

import pytest

from support.processes.cluster import Cluster
from support.processes.served_models import CHAT, USER, bearer, listed, make_key

PAGE = "https://chat.example.org"


async def test_pages_of_a_listed_origin_and_absolute_targets(cluster: Cluster) -> None:
    await cluster.start_controller(GPUWARD_CORS_ORIGINS=f"{PAGE}, http://localhost:3000")
    await cluster.start_agent("gpu-1")
    await cluster.apply("chat", resources={"gpus": 0})
    await cluster.running("chat")
    await listed(cluster, "chat")
    key = await make_key(cluster)
    await from_pages(cluster, key)
    await to_absolute_targets(cluster, key)
    await with_a_mistaken_base(cluster, key)


async def from_pages(cluster: Cluster, key: str) -> None:
    def origin_of(answer: Any) -> str | None:
        return answer.headers.get("Access-Control-Allow-Origin")

    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with cluster.session.options(CHAT, headers=asked | {"Authorization": ""}) as answer:
        assert (answer.status, origin_of(answer)) == (204, PAGE), "a preflight has no key"
        assert answer.headers["Access-Control-Allow-Headers"] == "authorization"
    body = {"model": "chat", "messages": USER}
    for more in ({}, {"stream": True}):
        async with cluster.session.post(CHAT, json=body | more, headers=bearer(key) | {"Origin": PAGE}) as answer:
            assert (answer.status, origin_of(answer)) == (200, PAGE)
            await answer.read()
    async with cluster.session.post(CHAT, json=body | {"model": "x"}, headers=bearer(key) | {"Origin": PAGE}) as answer:
        assert (answer.status, origin_of(answer)) == (404, PAGE), "errors are read, too"
    async with cluster.session.get("/v1/models", headers=bearer("wrong") | {"Origin": PAGE}) as answer:
        assert (answer.status, origin_of(answer)) == (401, PAGE)
    for origin in ("https://evil.example", "null"):
        async with cluster.session.post(CHAT, json=body, headers=bearer(key) | {"Origin": origin}) as answer:
            assert (answer.status, origin_of(answer)) == (200, None)
    async with cluster.session.get("/api/v1/deployments", headers={"Origin": PAGE}) as answer:
        assert (answer.status, origin_of(answer)) == (200, None), "models alone"


async def to_absolute_targets(cluster: Cluster, key: str) -> None:
    host = cluster.url.removeprefix("http://")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    try:
        for target in (f"http://{host}/v1/models", f"HTTP://{host}/v1/models?a=b#c"):
            head = f"GET {target} HTTP/1.1\r\nHost: other\r\nAuthorization: Bearer {key}\r\n\r\n"
            writer.write(head.encode())
            async with asyncio.timeout(10):
                answer = await reader.readuntil(b"\r\n\r\n")
                length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                assert b'"chat"' in await reader.readexactly(length)
            assert answer.startswith(b"HTTP/1.1 200 ")
    finally:
        writer.close()


async def with_a_mistaken_base(cluster: Cluster, key: str) -> None:
    mistakes = ("/chat/completions", "//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions/")
    for path in (*mistakes, "/v1/v1/chat/completions"):
        async with cluster.session.post(
            f"{cluster.url}{path}", json={"model": "chat", "messages": USER}, headers=bearer(key)
        ) as answer:
            error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (404, "not_found"), path
        assert "/v1/chat/completions" in error["message"], path
        assert "base URL" in error["message"], path


@pytest.mark.parametrize("origins", ["chat.example.org", "https://a.example/path"])
async def test_a_wrong_origin_is_refused_at_the_start(cluster: Cluster, origins: str) -> None:
    cluster.start("controller", "controller", "--data-dir", str(cluster.data_dir), GPUWARD_CORS_ORIGINS=origins)
    assert await asyncio.to_thread(cluster.processes["controller"].wait, 30) != 0
    assert "CORS_ORIGINS" in cluster.log("controller").upper()
