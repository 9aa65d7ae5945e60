"""Whether this gateway alone is cut off from the database, as far as the controller can tell."""

from typing import Final

import orjson

from gateway.control_plane.fetch import FetchError, fetch
from gateway.control_plane.reverse_proxy import Controller

KEPT_S: Final = 0.55  # what the controller says of its database may be so old
_READY: Final = b"/readyz"


async def controller_has_database(controller: Controller, limit_s: float) -> bool:
    """Whether the controller says that it reaches the database; False also where it says nothing within the limit."""
    try:
        _, body = await fetch(controller, _READY, [], limit_s)
        return bool(orjson.loads(body)["checks"]["database"]["ok"])
    except (FetchError, orjson.JSONDecodeError, KeyError, TypeError):
        return False
