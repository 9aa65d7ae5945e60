"""An event that is not written yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An append-only event.

    Attributes:
        objects: `deployment:<uid>`, `instance:<id>`, `worker:<id>`, `gpu:<uuid>`, `policy:<uid>`, `key:<id>`, ...
        actor: what did it; empty: what is at work when the event is written (`store/core/acting.py`).
    """

    reason: str
    message: str
    objects: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    actor: str = ""
