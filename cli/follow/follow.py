"""Follows a list: on a terminal as a table in its place, else by a line for each change."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from cli.errors import UsageError
from cli.follow.board import FOLLOWED, Board, Change, lists_of
from cli.follow.watch import Lost, watch
from cli.objects.kind import Kind, table_of
from cli.objects.kinds import EVENTS, GPUS
from cli.objects.selection import must_have_labels
from cli.objects.selectors import Selector
from cli.objects.views import read_view
from cli.printing.output import Format, Names, Output, Picked, print_data
from cli.printing.table import cells
from cli.terminal.screen import fit_for_screens
from cli.text.formatting import DASH, printable
from cli.transport.client import Api

_INSTEAD = {EVENTS.plural: "gpuward events -w", GPUS.plural: "gpuward top"}


def follow(
    api: Api,
    kind: Kind,
    output: Output,
    *,
    names: frozenset[str] = frozenset(),
    selector: Selector | None = None,
    deployment: str | None = None,
    with_notes: bool = False,
) -> None:
    """Follows the objects of a kind until Ctrl-C. `with_notes`: on a terminal, as `ps` has them below its table.

    Raises:
        UsageError: the watch does not report this kind, or it has no labels.
        CliError: see `cli.follow.watch.watch`.
    """
    if kind not in FOLLOWED:
        instead = _INSTEAD.get(kind.plural) or f"one of {', '.join(one.plural for one in FOLLOWED)}"
        raise UsageError(f"--watch: {kind.plural} cannot be followed so; use {instead}")
    if selector is not None:
        must_have_labels(kind)
    board = Board(kind, names, selector, deployment)
    for_people = isinstance(output, Format) and not output.for_programs
    screen = for_people and fit_for_screens()
    kinds = ",".join(lists_of(kind, selector, notes=with_notes and screen))
    updates = watch(api, kinds=kinds, deployment=deployment)
    if screen:
        from cli.follow.table_view import TableView  # noqa: PLC0415 - only here

        TableView(board, wide=output is Format.WIDE, with_notes=with_notes).follow(updates)
        return
    lines = _Lines(kind, output)
    for one in updates:
        if isinstance(one, Lost):
            print(printable(f"gpuward: {one.why}; trying again"), file=sys.stderr, flush=True)
        else:
            lines.print(board.take(one.events))


class _Lines:
    """Prints changes. Columns are as wide as what was printed so far needs; they grow, and never shrink."""

    def __init__(self, kind: Kind, output: Output) -> None:
        self._kind = kind
        self._output = output
        self._widths: list[int] = []

    def print(self, changes: Sequence[Change]) -> None:
        """Prints each change, and flushes."""
        if isinstance(self._output, Names | Picked) or self._output.for_programs:
            for change in changes:
                self._print_for_programs(change)
        else:
            self._print_rows(changes)
        sys.stdout.flush()

    def _print_for_programs(self, change: Change) -> None:
        if isinstance(self._output, Format):
            shown = {"type": "gone" if change.gone else "changed", "object": change.raw}
            print_data(shown, self._output, in_a_row=True)
        elif isinstance(self._output, Names) and not change.gone:
            self._output.write(self._kind, [change.raw])
        elif isinstance(self._output, Picked) and not change.gone:
            self._output.write(change.raw)

    def _print_rows(self, changes: Sequence[Change]) -> None:
        now, wide = datetime.now(UTC), self._output is Format.WIDE

        def rows(raws: Sequence[object]) -> Sequence[Sequence[str]]:
            views = [read_view(self._kind.view, raw) for raw in raws]
            return table_of(self._kind, views, now, wide=wide).rows

        titles = table_of(self._kind, [], now, wide=wide).titles
        new = rows([change.raw for change in changes])
        old = rows([change.before for change in changes if change.before is not None])
        befores = iter(old)
        shown = []
        for change, row in zip(changes, new, strict=True):
            before = next(befores) if change.before is not None else None
            if change.gone:
                shown.append([row[0], "gone", *[DASH] * (len(row) - 2)])
            elif row != before:
                shown.append([printable(cell) for cell in row])
        before_widths, first = self._widths or [0] * len(titles), not self._widths
        self._widths = [
            max(width, *(cells(row[n]) for row in (titles, *shown))) for n, width in enumerate(before_widths)
        ]
        if first:
            print(self._line(titles))
        for row in shown:
            print(self._line(row))

    def _line(self, row: Sequence[str]) -> str:
        padded = (text + " " * (width - cells(text)) for text, width in zip(row, self._widths, strict=True))
        return "  ".join(padded).rstrip()
