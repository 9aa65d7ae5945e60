"""The order in which pending instances are placed."""

from dataclasses import replace

from controller.domain.admission import Destination, PendingRow, in_order, new_instance


def row(name: str, priority: int, **more: object) -> PendingRow:
    return replace(new_instance(name, "d", "d", 1), priority=priority, **more)  # type: ignore[arg-type] # fields


def test_awaited_ones_come_after_what_is_pending_with_their_priority() -> None:
    moved = row("moved", 1, destination=Destination(("w",), ()))
    pending = [moved, row("a", 300), row("b", 100), row("c", 100), row("d", 50)]
    awaited = [row("next-b", 100, awaited=True), row("next-d", 50, awaited=True)]
    assert [one.id for one in in_order(pending, awaited)] == ["moved", "a", "b", "c", "next-b", "d", "next-d"]
    assert in_order(pending, []) == pending
