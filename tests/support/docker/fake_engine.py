"""A Docker engine that answers as a test says, over real HTTP on a socket."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from aiohttp import web

from agent.containers.docker_engine import DockerEngine

Answer: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def engine_that(folder: Path, answer: Answer) -> AsyncIterator[DockerEngine]:
    """A client of an engine that answers so."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/version"):
            return web.json_response({"ApiVersion": "1.41"})
        return await answer(request)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(folder / "d.sock")).start()
    engine = DockerEngine(f"unix://{folder}/d.sock")
    try:
        yield engine
    finally:
        await engine.aclose()
        await runner.cleanup()
