"""Events as rows of a table: equal ones in a row are one, with their number and the age of the first. Pure."""

from collections.abc import Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING

from cli.text.formatting import age

if TYPE_CHECKING:  # slow to import
    from schemas.api.events import EventView


def folded(views: Sequence["EventView"], now: datetime) -> list["EventView"]:
    """Oldest first, as given. Of equal events in a row the last, which states their number and the first's age."""
    rows: list[list[EventView]] = []
    for view in views:
        if rows and _same(rows[-1][-1], view):
            rows[-1].append(view)
        else:
            rows.append([view])
    return [row[0] if len(row) == 1 else _with_number(row, now) for row in rows]


def _same(one: "EventView", other: "EventView") -> bool:
    return (one.reason, one.message, one.actor, one.objects) == (
        other.reason,
        other.message,
        other.actor,
        other.objects,
    )


def _with_number(row: Sequence["EventView"], now: datetime) -> "EventView":
    last = row[-1]
    text = f"{last.message} (\N{MULTIPLICATION SIGN}{len(row)}, the first {age(row[0].at, now)} ago)"
    fields = {
        name: getattr(last, name) for name in ("id", "at", "reason", "objects", "subjects", "actor", "request_id")
    }
    found: EventView = SimpleNamespace(**fields, message=text)  # type: ignore[assignment]  # has what rows show
    return found
