"""The leader as the API shows it."""

from schemas.api.view import Moment, View


class LeaderView(View, frozen=True, kw_only=True):
    """The lease row. `leading`: the controller that answers is the leader."""

    holder: str
    term: int
    renewed_at: Moment | None
    leading: bool
