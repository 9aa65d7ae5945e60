"""The certificate of the controller's own authority, for agents whose join token names it. It is public."""

from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.errors import ApiError
from controller.api.route import Access, Route
from schemas.wire import CA_PATH

_PEM: Final = "application/x-pem-file"


async def get(request: web.Request) -> web.Response:
    """`GET /ca`."""
    authority = request.app[CONTEXT].authority
    if authority is None:
        raise ApiError(404, "no_authority", "this controller has no certificate authority of its own")
    return web.Response(body=authority.certificate, content_type=_PEM)


ROUTES: Final = (
    Route("GET", CA_PATH, get, Access.OPEN, "Certificate of the controller's authority", "agents", media=_PEM),
)
