"""GPUs: list, read."""

from typing import Final

from controller.api.read_routes import list_route, read_route
from controller.api.route import Query
from controller.store.views.gpus import gpu_by_uuid, list_gpus
from schemas.api.envelopes import Page
from schemas.api.gpus import GpuView

_PATH: Final = "/api/v1/gpus"
ROUTES: Final = (
    list_route(_PATH, list_gpus, "List GPUs", Page[GpuView], (Query("worker", "only of this worker"),)),
    read_route(_PATH, "uuid", gpu_by_uuid, "Read a GPU", GpuView),
)
