"""Events as rows of a table. Equal events in a row become a row, with their number and the age of the first. Pure."""

from collections.abc import Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING

from cli.text.formatting import age

if TYPE_CHECKING:  # slow to import
    from schemas.api.events import EventView


def folded(views: Sequence["EventView"], now: datetime) -> list["EventView"]:
    """The views in their order, oldest first. The last of equal events in a row replaces them all."""
    rows: list[list[EventView]] = []
    for view in views:
        if rows and _content(rows[-1][-1]) == _content(view):
            rows[-1].append(view)
        else:
            rows.append([view])
    return [row[0] if len(row) == 1 else _with_number(row, now) for row in rows]


def _content(view: "EventView") -> tuple[object, ...]:
    return view.reason, view.message, view.actor, view.objects


def _with_number(row: Sequence["EventView"], now: datetime) -> "EventView":
    last = row[-1]
    text = f"{last.message} (\N{MULTIPLICATION SIGN}{len(row)}, the first {age(row[0].at, now)} ago)"
    fields = {
        name: getattr(last, name) for name in ("id", "at", "reason", "objects", "subjects", "actor", "request_id")
    }
    folded_view: EventView = SimpleNamespace(**fields, message=text)  # type: ignore[assignment]  # has a row's fields
    return folded_view
