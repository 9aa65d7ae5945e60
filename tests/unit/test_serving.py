"""A controller's own port answers any caller. Its start warns where other hosts can reach it."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from controller.runtime.clock import SystemClock
from controller.serving import listen, runner_of, serving_parts
from controller.settings import ControllerSettings


@pytest.mark.parametrize(
    ("host", "secret", "warns"),
    [("0.0.0.0", None, True), ("127.0.0.1", None, False), ("localhost", None, False), ("0.0.0.0", "s" * 32, False)],  # noqa: S104
)
async def test_the_port_warns_where_strangers_may_reach_it(
    host: str, secret: str | None, warns: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"gateway": False, "host": host, "port": 0, "data_dir": tmp_path}
    settings = ControllerSettings(**options, **({} if secret is None else {"gateway_secret": secret}))
    serving = serving_parts(settings, None, SystemClock())

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/healthz", healthy)
    runner = runner_of(app)
    await runner.setup()
    try:
        with capture_logs() as lines:
            url, sockets = await listen(settings, serving, runner)
        assert sockets is None
        assert any("not defended against strangers" in line["event"] for line in lines) is warns
        async with aiohttp.ClientSession() as session, session.get(f"{url}/healthz") as answer:
            assert await answer.text() == "ok"
    finally:
        await runner.cleanup()
        serving.collections.close()
