"""A small reverse proxy, as a process: it adds the client's address to what the client claims, as real ones do.

python -m support.processes.reverse_proxy ADDRESS TARGET        prints its port
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
from aiohttp import web


async def serve(address: str, target: str) -> None:
    """Serves on this address, and connects to the target from it, until the process ends."""
    connector = aiohttp.TCPConnector(local_addr=(address, 0))
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def forward(request: web.Request) -> web.Response:
            headers = request.headers.copy()
            headers.add("X-Forwarded-For", request.remote or "")
            headers["X-Forwarded-Proto"] = "https"
            body = await request.read()
            async with session.request(request.method, target + request.path_qs, headers=headers, data=body) as answer:
                return web.Response(status=answer.status, body=await answer.read())

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, address, 0).start()
        print(runner.addresses[0][1], flush=True)  # noqa: T201 - for the one that started it
        await asyncio.Event().wait()


@contextmanager
def running(address: str, target: str, *, path: str) -> Iterator[str]:
    """Runs one; yields its URL. `path` is the PYTHONPATH."""
    argv = [sys.executable, "-P", "-m", "support.processes.reverse_proxy", address, target]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env={"PYTHONPATH": path}, text=True)
    assert process.stdout is not None
    with process, process.stdout:
        try:
            yield f"http://{address}:{int(process.stdout.readline())}"
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
