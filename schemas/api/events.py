"""Events as the API returns them."""

from datetime import datetime
from typing import Any

from schemas.base import View


class EventView(View):
    """An append-only fact: a reason code with evidence, linked to the objects that it concerns."""

    id: int
    at: datetime
    reason: str
    message: str
    evidence: dict[str, Any] = {}
    objects: list[str] = []
