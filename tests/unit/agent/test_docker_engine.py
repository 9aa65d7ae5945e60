"""A Docker engine that answers nonsense is away; its calls that last hold up no others."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent.containers.docker_engine import DockerAwayError
from support.docker.fake_engine import engine_that


@pytest.mark.parametrize("listed", [[{}], [{"Id": "c"}], [5], 5, None, {"a": 1}])
async def test_a_list_that_makes_no_sense_is_as_an_engine_that_is_away(tmp_path: Path, listed: Any) -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(text=json.dumps(listed), content_type="application/json")

    async with engine_that(tmp_path, answer) as engine:
        with pytest.raises(DockerAwayError):
            await engine.list_of("owner")


async def test_a_container_without_a_name_is_known_by_its_id(tmp_path: Path) -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(
            [{"Id": "c1", "Names": None, "Labels": None}, {"Id": "c2", "Names": ["/n"], "Labels": {}}]
        )

    async with engine_that(tmp_path, answer) as engine:
        assert await engine.list_of("owner") == [{"name": "c1", "labels": {}}, {"name": "n", "labels": {}}]


async def test_many_calls_that_last_hold_up_no_other(tmp_path: Path) -> None:
    many, waiting, over = 150, asyncio.Semaphore(0), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/wait"):
            waiting.release()
            await over.wait()
            return web.json_response({"StatusCode": 0})
        return web.json_response([])

    async with engine_that(tmp_path, answer) as engine, asyncio.TaskGroup() as group:
        for n in range(many):
            group.create_task(engine.wait(f"c{n}"))
        async with asyncio.timeout(60):
            for _ in range(many):
                await waiting.acquire()
            assert await engine.list_of("owner") == []
        over.set()
