"""The secret between gateways and an agent's proxy changes while requests and streams are under way: none is lost."""

import asyncio

import asyncpg
import pytest

from support.processes.cluster import Cluster
from support.processes.gateways import CHAT, Another, asked, embedded_dsn, with_a_model
from support.processes.hostile import meanwhile

pytestmark = [pytest.mark.cases, pytest.mark.timeout(120)]
ROTATED_S = 5.0
CHANGES = 2
CLIENTS, STREAMS = 8, 4
TOKENS, TOKEN_S = 60, 0.1
STORED = """
    select coalesce(proxy_secret, encode(sealed, 'hex'))
      from workers left join sealed_proxy_secrets on worker_id = id"""


async def test_no_request_is_lost_while_the_secret_changes(cluster: Cluster) -> None:
    await with_a_model(cluster, GPUWARD_ROTATE_CREDENTIALS_DAYS=str(ROTATED_S / 86_400))
    other = Another(cluster)
    await cluster.until(other.is_ready, "the other gateway is ready")
    database = await asyncpg.connect(embedded_dsn(cluster))
    ended: list[object] = []

    async def ask(url: str) -> None:
        while True:
            async with cluster.session.post(url + CHAT, json=asked("tokens=2")) as answer:
                ended.append((answer.status, await answer.text()) if answer.status != 200 else 200)

    async def stream(url: str) -> None:
        while True:
            body = asked(f"tokens={TOKENS} token_seconds={TOKEN_S}", stream=True)
            async with cluster.session.post(url + CHAT, json=body) as answer:
                text = await answer.text()
                ended.append("whole" if answer.status == 200 and "[DONE]" in text else (answer.status, text))

    asking = [asyncio.create_task(ask(url)) for url in (cluster.url, other.url) for _ in range(CLIENTS // 2)]
    asking += [asyncio.create_task(stream(url)) for url in (cluster.url, other.url) for _ in range(STREAMS // 2)]
    seen: set[str] = set()

    async def has_changed() -> bool:
        seen.add(await database.fetchval(STORED))
        return len(seen) > CHANGES

    try:
        async with meanwhile(*asking):
            await cluster.until(has_changed, f"the secret has changed {CHANGES} times", 60)
            before = ended.count("whole")
            await cluster.until(lambda: ended.count("whole") >= before + STREAMS, "streams end", 30)
    finally:
        await database.close()
    assert set(ended) == {200, "whole"}
