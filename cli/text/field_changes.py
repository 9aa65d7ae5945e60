"""The changes of an apply, field by field, as text. Pure."""

import json
from typing import TYPE_CHECKING, Any

from schemas.printing import one_line, safe_json

if TYPE_CHECKING:  # slow to import
    from schemas.api.plan import FieldChange, PlanView


def change_lines(view: "PlanView", name: str) -> list[str]:
    replaced = view.replaces.get(name, 0)
    return [change_line(change, replaced) for change in view.field_changes.get(name, [])]


def change_line(change: "FieldChange", replaced: int = 0) -> str:
    """`replaced`: the number of instances that the change replaces; 0: unknown."""
    effect = "in place" if change.effect == "in_place" else "replaces"
    if change.effect == "replaces" and replaced:
        effect = f"replaces {replaced} instance{'' if replaced == 1 else 's'}"
    return f"  {one_line(change.field)}: {_value(change.old)} -> {_value(change.new)} ({effect})"


def _value(value: Any) -> str:
    if value is None:
        return "(not set)"
    if isinstance(value, str) and _needs_no_quotes(value):
        return value
    return safe_json(json.dumps(value, ensure_ascii=False))


def _needs_no_quotes(text: str) -> bool:
    # not a text with spaces, which could be read as more of the line, nor `null`, which is a value
    if not text or not text.isprintable() or " " in text or text[0] in '"[{':
        return False
    try:
        json.loads(text)
    except ValueError:
        return True
    return False
