"""How a worker is drained: until when replacements start first, and what becomes of tasks then. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from schemas.api.requests import DEFAULT_DRAIN_S, DrainBody


@dataclass(frozen=True, slots=True)
class Drain:
    """A drain. `until` None: everything stops at once, tasks too."""

    until: datetime | None = None
    restarts_tasks: bool = False


def drain_of(request: DrainBody, at: datetime, present: Drain | None) -> Drain:
    """The drain that a request asks for.

    Args:
        request: what is written.
        at: the present moment.
        present: the drain under way, of which stays what is not written; None: there is none.
    """
    if request.now:
        return Drain()
    until = present.until if present is not None else at + timedelta(seconds=DEFAULT_DRAIN_S)
    if request.timeout is not None:
        until = at + timedelta(seconds=request.timeout)
    tasks = present is not None and present.restarts_tasks
    return Drain(until, tasks if request.restart_tasks is None else request.restart_tasks)
