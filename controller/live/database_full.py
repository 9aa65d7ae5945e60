"""The reason of objects that wait for a write while the disk of the database is full, so no row has it. Pure."""

from typing import Final, TypeVar

from msgspec.structs import replace

from schemas.api.deployments import DeploymentView
from schemas.api.instances import InstanceView
from schemas.api.pending import PendingView
from schemas.api.view import View
from schemas.database_disk import DATABASE_FULL, DATABASE_FULL_TEXT

# Phases that a write ends. In other phases the object's own reason is worth more.
_DEPLOYMENTS: Final = frozenset({"pending", "progressing", "deleting"})
_INSTANCES: Final = frozenset({"pending", "analyzing", "scheduled", "stopping"})
_WHY: Final = {"reason": DATABASE_FULL, "message": DATABASE_FULL_TEXT}

V = TypeVar("V", bound=View)


def while_full(view: V, *, full: bool) -> V:
    """Sets that reason on an object that waits for a write, if the disk is `full`; else returns the object as it is."""
    if not full:
        return view
    match view:
        case DeploymentView() if view.status.phase in _DEPLOYMENTS:
            return replace(view, status=replace(view.status, **_WHY))
        case InstanceView() if view.status.phase in _INSTANCES:
            explain = view.status.explain
            line = {} if explain is None else {"explain": replace(explain, message=DATABASE_FULL_TEXT)}
            return replace(view, status=replace(view.status, **_WHY, **line))
        case PendingView():
            return replace(view, **_WHY)
        case _:
            return view
