"""Logs that agents would stream, and a deployment whose instances have them."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any, Final

from aiohttp import web

from controller.store.core.database import Database
from schemas.wire import TIMED_LOG
from support.database.ledger import add_deployment, add_host, add_instance
from support.leading.served_api import ServedApi
from support.loopback import listening

BASE_MS: Final = 1_800_000_000_000
Say = Callable[[web.StreamResponse], Awaitable[None]]


class AgentDouble:
    """Logs by instance and rank: what is there, and what follows. `asked` holds the queries."""

    def __init__(self, *, timed: bool = True) -> None:
        self.timed = timed
        self.there: dict[str, list[bytes]] = {}
        self.say: dict[str, Say] = {}
        self.asked: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        name = f"{request.match_info['instance']}/{request.query.get('rank', '0')}"
        if name not in self.there:
            return web.Response(status=404)
        response = web.StreamResponse(headers={"Content-Type": TIMED_LOG if self.timed else "text/plain"})
        await response.prepare(request)
        await response.write(b"".join(self.there[name]))
        if "follow" in request.query:
            await self.say[name](response)
        return response

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/logs/{instance}", self.answer)
        return app


def frames(*lines: tuple[int, str], exact: int = 1) -> list[bytes]:
    at = 0
    found = []
    for after_ms, text in lines:
        found.append(b"L%d %d %d %b\n" % (BASE_MS + after_ms, exact, at, text.encode()))
        at += len(text) + 1
    return [*found, b"C\n"]


class Logs:
    """A deployment `d` with an instance on each worker, whose agents are doubles."""

    def __init__(self, api: ServedApi, db: Database, stack: AsyncExitStack) -> None:
        self.api, self.db, self._stack = api, db, stack
        self.uid: Any = None

    async def add(self, instance: str, agent: AgentDouble, *, epoch: int = 1, ranks: Iterable[int] = (0,)) -> None:
        self.uid = self.uid or await add_deployment(self.db, "d")
        await add_instance(self.db, self.uid, instance, phase="running", epoch=epoch)
        address = await self._stack.enter_async_context(listening(agent.app()))
        for rank in ranks:
            host = await add_host(self.db, f"w-{instance}-{rank}", gpus=1)
            async with self.db.transaction() as connection:  # with the claim, the agent is asked at once
                await connection.execute("update workers set proxy_address = $1 where name = $2", address, host.name)
                await connection.execute(
                    "insert into claims (device, instance_id, epoch, rank, memory_mib) values ($1, $2, $3, $4, 0)",
                    f"host-{host.id}", instance, epoch, rank,
                )  # fmt: skip

    async def read(self, path: str, status: int = 200) -> str:
        async with self.api.session.get(f"{self.api.url}/api/v1{path}", headers=self.api.header("operator")) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text

    async def follow(self, path: str) -> AsyncIterator[dict[str, Any]]:
        async with self.api.session.get(f"{self.api.url}/api/v1{path}", headers=self.api.header("operator")) as answer:
            assert answer.status == 200
            while line := await answer.content.readline():
                yield json.loads(line)
