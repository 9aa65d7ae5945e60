"""A probe that this agent could not make says nothing about the engine."""

import asyncio
import errno
from typing import Any

import pytest
from aiohttp import web

from agent.decide.health import HealthLimits, ProcessHealth, after_probe
from agent.processes.probe import Prober
from http1.protocol.client import Pool
from http1.protocol.connecting import ConnectError
from schemas.wire import ProbeOrder
from support.loopback import listening

ORDER = ProbeOrder(path="/health", period_s=1.0, timeout_s=1.0, failures=1)


@pytest.mark.parametrize(
    ("number", "answered"), [(errno.EMFILE, None), (errno.ENFILE, None), (errno.ECONNREFUSED, False)]
)
async def test_too_many_open_files_are_no_answer_of_the_engine(
    number: int, answered: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise ConnectError("on purpose", number)

    monkeypatch.setattr(Pool, "connect", fails)
    assert await Prober().probe(ORDER, 9) is answered


def test_an_unknown_probe_changes_nothing() -> None:
    limits = HealthLimits(failures=1, start_timeout_s=1.0, liveness_timeout_s=1.0)
    running = ProcessHealth(state="running", progress_s=0.0, ready=True)
    assert after_probe(running, limits, answered=None, now_s=50.0) == running
    assert after_probe(running, limits, answered=False, now_s=50.0).state == "unhealthy"


@pytest.mark.parametrize(
    ("models", "status", "generates"),
    [
        ({"data": [{"id": "m"}]}, 200, True),
        ({"data": [{"id": "m"}]}, 500, False),
        ({"data": [{"id": "m"}]}, 503, None),  # a full queue
        ({"data": [{"id": "m"}]}, 404, None),  # an engine without completions
        ({"data": [{"id": "m"}]}, 429, None),
        ({"data": [{"id": "m"}]}, 0, False),  # never
        ({"data": []}, 200, None),
        ([1], 200, None),
    ],
)
async def test_one_token(models: Any, status: int, generates: bool | None) -> None:
    asked: list[Any] = []

    async def listed(_: web.Request) -> web.Response:
        return web.json_response(models)

    async def complete(request: web.Request) -> web.Response:
        asked.append(await request.json())
        if not status:
            await asyncio.sleep(30)
        return web.json_response({}, status=status)

    app = web.Application()
    app.router.add_get("/v1/models", listed)
    app.router.add_post("/v1/completions", complete)
    async with listening(app) as address:
        port = int(address.rpartition(":")[2])
        assert await Prober().generate(port, 0.3) is generates
    assert all((one["model"], one["max_tokens"]) == ("m", 1) for one in asked)
    assert await Prober().generate(port, 0.3) is False, "nothing listens"


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
async def test_an_engine_sends_the_agent_nowhere_else(path: str) -> None:
    """What answers there is closed to the engine, but not to the agent."""
    reached: list[str] = []

    async def inner(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.json_response({"data": [{"id": "secret"}]})

    async def engine(request: web.Request) -> web.Response:
        if request.path == path:
            return web.Response(status=307, headers={"Location": f"http://{elsewhere}/closed"})
        return web.json_response({"data": [{"id": "m"}]})

    closed, app = web.Application(), web.Application()
    closed.router.add_route("*", "/closed", inner)
    app.router.add_route("*", "/v1/{_}", engine)
    async with listening(closed) as elsewhere, listening(app) as address:
        assert await Prober().generate(int(address.rpartition(":")[2]), 5.0) is None
    assert reached == []


async def test_a_deeply_nested_list_of_models_says_nothing() -> None:
    async def listed(_: web.Request) -> web.Response:
        return web.Response(text="[" * 100_000)

    app = web.Application()
    app.router.add_get("/v1/models", listed)
    async with listening(app) as address:
        assert await Prober().generate(int(address.rpartition(":")[2]), 5.0) is False
