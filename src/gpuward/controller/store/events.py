"""Append-only facts, written in the transaction of what they tell of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class NewEvent:
    """A fact to be written. `objects` are `deployment:<uid>`, `instance:<id>`, `worker:<id>`, `gpu:<uuid>`."""

    reason: str
    message: str
    objects: tuple[str, ...]
    evidence: Mapping[str, Any] = field(default_factory=dict)


class _Connection(Protocol):
    async def executemany(self, command: str, args: Iterable[Any]) -> None:
        """Runs one statement for many rows."""


async def write_events(connection: _Connection, events: Iterable[NewEvent]) -> None:
    """Appends events in order."""
    rows = [(e.reason, e.message, dict(e.evidence), list(e.objects)) for e in events]
    if rows:
        await connection.executemany(
            "insert into events (reason, message, evidence, objects) values ($1, $2, $3, $4)", rows
        )
