"""The leader as the API shows it."""

from datetime import datetime

from schemas.base import View


class LeaderView(View):
    """The lease row. `leading`: the controller that answers is the leader."""

    holder: str
    term: int
    renewed_at: datetime | None
    leading: bool
