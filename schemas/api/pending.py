"""The pending instances as the API returns them, in the order in which they are placed."""

from schemas.api.explain import Explain
from schemas.api.view import Literal, Moment, View


class PendingView(View, frozen=True, kw_only=True):
    """A pending instance.

    Attributes:
        instance: its id.
        place: in the queue, from 1; None: it has none yet, since its need is being worked out or it is in backoff.
        of: how many have a place.
        since: when it became pending.
        queued_at: from when its age in the queue counts: it keeps it when it is preempted or relocated.
        not_before: it is not placed earlier; None: it may be placed at once.
        reason: a code.
        message: why it is pending, in one line, as `gpuward ps` prints it.
        explain: the counts and the nearest miss of the latest placement pass; None: there was none yet.
        reserved_on: the workers on which capacity is reserved for it, by rank; empty: none is.
    """

    instance: str
    deployment: str
    deployment_uid: str
    place: int | None = None
    of: int
    phase: Literal["pending", "analyzing"]
    priority: int
    preempt: bool = False
    since: Moment
    queued_at: Moment
    not_before: Moment | None = None
    reason: str = ""
    message: str = ""
    explain: Explain | None = None
    reserved_on: list[str] = []


class PendingList(View, frozen=True, kw_only=True):
    """All pending instances: those with a place, in order, then the others.

    Attributes:
        at: when they were read.
        of: how many have a place.
        more: further ones are pending than the answer has.
    """

    at: Moment
    of: int
    more: bool = False
    items: list[PendingView]
    next: str | None = None
