"""Applications served on a free port of loopback."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def listening(
    app: web.Application,
    *,
    port: int = 0,
    shutdown_s: float = 1.0,
    cancel_handlers: bool = True,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Serves the application until the end of the context; yields HOST:PORT."""
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=cancel_handlers, shutdown_timeout=shutdown_s, auto_decompress=False
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True, backlog=4096, ssl_context=tls).start()
        host, bound = runner.addresses[0][:2]
        yield f"{host}:{bound}"
    finally:
        await runner.cleanup()
