"""What an apply would change, field by field, as text. Pure."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # slow to import
    from schemas.api.plan import FieldChange, PlanView


def change_lines(view: "PlanView", name: str) -> list[str]:
    """One line for each changed field of a deployment, in the order of the manifest."""
    replaced = view.replaces.get(name, 0)
    return [change_line(change, replaced) for change in view.field_changes.get(name, [])]


def change_line(change: "FieldChange", replaced: int = 0) -> str:
    """One changed field. `replaced`: how many instances it replaces, where that is known."""
    effect = "in place" if change.effect == "in_place" else "replaces"
    if change.effect == "replaces" and replaced:
        effect = f"replaces {replaced} instance{'' if replaced == 1 else 's'}"
    return f"  {change.field}: {_value(change.old)} -> {_value(change.new)} ({effect})"


def _value(value: Any) -> str:
    if value is None:
        return "(not set)"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
