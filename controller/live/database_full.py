"""Why nothing happens to an object while the disk of the database is full, which no row can hold then. Pure."""

from typing import Final, TypeVar

from msgspec.structs import replace

from schemas.api.deployments import DeploymentView
from schemas.api.instances import InstanceView
from schemas.api.pending import PendingView
from schemas.api.view import View
from schemas.database_disk import DATABASE_FULL, DATABASE_FULL_TEXT

# Phases that a write ends. In the others the object's own reason is worth more.
_DEPLOYMENTS: Final = frozenset({"pending", "progressing", "deleting"})
_INSTANCES: Final = frozenset({"pending", "analyzing", "scheduled", "stopping"})
_WHY: Final = {"reason": DATABASE_FULL, "message": DATABASE_FULL_TEXT}

V = TypeVar("V", bound=View)


def while_full(view: V, *, full: bool) -> V:
    """The object with that reason where it waits for a write; `full`: whether the disk is full. Others as they are."""
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
