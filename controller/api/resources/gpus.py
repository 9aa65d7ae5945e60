"""GPUs: list, read, cordon, uncordon."""

from typing import Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.parameters import expect_first_generation
from controller.api.read_routes import list_route, read_route
from controller.api.route import Access, Handler, Query, Route
from controller.store.views.gpus import gpu_by_uuid, list_gpus
from controller.store.workers.devices import GpuVerb, set_gpu_cordon
from schemas.api.envelopes import Page
from schemas.api.gpus import GpuView


def _verb(verb: GpuVerb) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        uuid = request.match_info["uuid"]
        await expect_first_generation(request, "gpu", uuid, gpu_by_uuid)
        return json_response(await set_gpu_cordon(request.app[CONTEXT].database, uuid, verb))

    return handler


_PATH: Final = "/api/v1/gpus"
_SUMMARIES: Final[tuple[tuple[GpuVerb, str], ...]] = (
    ("cordon", "Place nothing new on a GPU"),
    ("uncordon", "Undo the cordon of a GPU, and dismiss a grave Xid of it"),
)
ROUTES: Final = (
    list_route(_PATH, list_gpus, "List GPUs", Page[GpuView], (Query("worker", "only of this worker"),)),
    read_route(_PATH, "uuid", gpu_by_uuid, "Read a GPU", GpuView),
    *(
        Route("POST", f"{_PATH}/{{uuid}}/{verb}", _verb(verb), Access.OPERATE, summary, "gpus", GpuView,
              expects="generation")
        for verb, summary in _SUMMARIES
    ),
)  # fmt: skip
