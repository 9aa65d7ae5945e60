"""A custom server's own paths with real processes: aiohttp serves them, and aiohttp asks for them."""

import asyncio
import sys

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.served_models import bearer, listed, make_key, serve

SERVER = """
import sys
from aiohttp import web
async def echo(request):
    body = await request.text()
    seen = {"method": request.method, "path": request.raw_path, "body": body, "cookies": dict(request.cookies)}
    answer = web.json_response(seen)
    answer.set_cookie("a", "b")
    return answer
async def socket(request):
    made = web.WebSocketResponse(protocols=["own"])
    await made.prepare(request)
    async for message in made:
        await made.send_str(message.data * 2)
    return made
async def moved(request):
    raise web.HTTPTemporaryRedirect("/public/here")
app = web.Application()
app.router.add_get("/public/socket", socket)
app.router.add_get("/public/moved", moved)
app.router.add_route("*", "/{rest:.*}", echo)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
"""


async def test_programs_reach_a_custom_servers_own_paths(cluster: Cluster) -> None:
    command = [sys.executable, "-c", SERVER, "{port}"]
    serving = {"apps": {"paths": ["/public"]}, "queue": {"length": 4}}
    spec = {"engine": "custom", "command": command, "probe": {"path": "/"}, "serving": serving}
    await serve(cluster, chat=spec)
    await listed(cluster, "chat")
    key = bearer(await make_key(cluster))
    base = f"http://127.0.0.1:{cluster.port}/apps/chat"
    async with aiohttp.ClientSession(cookies={"own": "x"}) as session:
        for method in ("GET", "PUT", "DELETE", "PURGE"):
            async with session.request(method, f"{base}/public/a?b=c", headers=key, data="hi") as answer:
                seen = await answer.json()
                assert seen == {"method": method, "path": "/public/a?b=c", "body": "hi", "cookies": {}}
                assert answer.headers["Content-Security-Policy"] == "sandbox"
                assert "Set-Cookie" not in answer.headers
        async with session.get(f"{base}/public/moved", headers=key) as answer:
            assert (await answer.json())["path"] == "/public/here"
        async with session.get(f"{base}/public/a", headers={"Accept": "text/html"}) as answer:
            assert answer.status == 401
            assert "are for programs" in await answer.text()
        async with session.get(f"{base}/private", headers=key) as answer:
            assert answer.status == 404
        async with session.ws_connect(f"{base}/public/socket", headers=key, protocols=["own"]) as socket:
            assert socket.protocol == "own"
            for text in ("a", "b" * 300_000):
                await socket.send_str(text)
                assert await socket.receive_str(timeout=20) == text * 2
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(f"{base}/public/socket")
        # A key that is revoked ends what it has opened.
        made = await cluster.post("/keys", {"name": "short", "role": "inference"})
        socket = await session.ws_connect(f"{base}/public/socket", headers=bearer(made["key"]))
        async with cluster.session.delete(f"/api/v1/keys/{made['id']}") as answer:
            assert answer.status < 300
        assert (await asyncio.wait_for(socket.receive(), 20)).type in (
            aiohttp.WSMsgType.CLOSED,
            aiohttp.WSMsgType.CLOSE,
        )
        await socket.close()
