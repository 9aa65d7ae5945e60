"""An event that is not written yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An append-only event. `objects` are `deployment:<uid>`, `instance:<id>`, `worker:<id>` and `gpu:<uuid>`."""

    reason: str
    message: str
    objects: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
