"""Workers with running instances behind stand-ins for their agents, and the gateway in front of them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from controller.store.core.database import Database
from support.database.ledger import Host, add_deployment, add_host, add_instance, claim, report
from support.leading.served_api import ServedApi, proxy

CHAT = "/v1/chat/completions"
LIMIT_S = 20.0


@dataclass
class Agent:
    """A stand-in for an agent's proxy: records requests, and answers as the test sets it."""

    answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.title(): value for name, value in request.headers.items()}
        self.seen.append((request.raw_path, headers, await request.read()))
        if self.answer is not None:
            return await self.answer(request)
        return web.json_response({"from": request.path.split("/")[2]})


class Floor:
    """Workers with running instances behind stand-ins for their agents."""

    def __init__(self, api: ServedApi, db: Database, stack: AsyncExitStack) -> None:
        self.api, self.db, self.stack = api, db, stack

    async def worker(self, name: str, agent: Agent | None = None) -> Host:
        """A worker; without an agent its address refuses connections."""
        host = await add_host(self.db, name, gpus=1)
        address = "127.0.0.1:9" if agent is None else await self.stack.enter_async_context(proxy(agent.handle))
        async with self.db.transaction() as connection:
            query = "update workers set proxy_address = $1, proxy_secret = $2 where name = $3"
            await connection.execute(query, address, f"secret of {name}", name)
        return host

    async def run(self, uid: str, instance: str, host: Host) -> None:
        await add_instance(self.db, uid, instance, phase="running", epoch=1)
        await claim(self.db, f"host-{host.id}", instance, 0)
        await report(self.db, instance, "running")

    async def replicas(self, *agents: Agent | None, model: str = "m", **spec: Any) -> str:
        """A deployment with one running instance at each of these agents, `m-1` and on; returns its uid."""
        uid = await add_deployment(self.db, model, **spec)
        for number, agent in enumerate(agents, 1):
            await self.run(uid, f"{model}-{number}", await self.worker(f"{model}-w{number}", agent))
        await self.served(model)
        return uid

    async def ask(self, model: str = "m", **options: Any) -> tuple[int, Any]:
        return await self.api.call("POST", CHAT, role="inference", json={"model": model, "messages": []}, **options)

    async def served(self, *models: str) -> None:
        """Waits until exactly these models run for the gateway."""
        self.api.changes.publish("status", "any")
        async with asyncio.timeout(LIMIT_S):
            while True:
                found = await self.api.get("/v1/models", role="inference")
                if [one["id"] for one in found["data"] if one["gpuward"]["state"] == "running"] == sorted(models):
                    return
                await asyncio.sleep(0.02)
