"""Instances: list, read."""

from typing import Final

from controller.api.read_routes import list_route, read_route
from controller.api.route import Query
from controller.store.views.instances import instance_by_id, list_instances
from schemas.api.envelopes import Page
from schemas.api.instances import InstanceView

_PATH: Final = "/api/v1/instances"
_FILTERS: Final = (
    Query("deployment", "only of this deployment"),
    Query("worker", "only those with claims on this worker"),
)
ROUTES: Final = (
    list_route(_PATH, list_instances, "List instances", Page[InstanceView], _FILTERS),
    read_route(_PATH, "id", instance_by_id, "Read an instance", InstanceView),
)
