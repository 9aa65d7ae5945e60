"""The leader: which controller holds the lease, and its term."""

from typing import Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.route import Access, Route
from controller.store.views.leader import read_leader
from schemas.api.leader import LeaderView


async def get(request: web.Request) -> web.Response:
    """`GET /leader`."""
    leading, _ = request.app[CONTEXT].leadership()
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(await read_leader(connection, leading=leading))


ROUTES: Final = (Route("GET", "/api/v1/leader", get, Access.READ, "Read leader and term", "ledger", LeaderView),)
