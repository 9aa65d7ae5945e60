"""Follows a list: on a terminal as a table in its place, else by a line for each change."""

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from cli.errors import UsageError
from cli.follow.board import FOLLOWED, Board, Change, lists_of
from cli.follow.watch import Lost, Update, watch
from cli.objects.gpus import gpu_names
from cli.objects.kind import Kind, table_of
from cli.objects.kinds import DEPLOYMENTS, EVENTS, GPUS, INSTANCES
from cli.objects.selection import must_have_labels
from cli.objects.selectors import Selector
from cli.objects.views import read_view
from cli.printing.output import Format, Names, Output, Picked, print_data, takes_colours
from cli.printing.table import cells, table_lines
from cli.terminal.screen import Screen, fit_for_screens
from cli.text.formatting import DASH, printable
from cli.text.gpu_names import GpuNames
from cli.text.scaling import notes
from cli.transport.client import Api
from cli.transport.reading import Reading

_INSTEAD: Final = {EVENTS.plural: "gpuward events -w", GPUS.plural: "gpuward top"}
_CALM_S: Final = 0.5  # between two pictures
_TICK_S: Final = 2.0  # ages change with time


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
    """Follows the objects of a kind until Ctrl-C. `with_notes`: on a terminal, below the table as `ps` prints them."""
    if kind not in FOLLOWED:
        instead = _INSTEAD.get(kind.plural) or f"one of {', '.join(known.plural for known in FOLLOWED)}"
        raise UsageError(f"--watch: {kind.plural} cannot be followed so; use {instead}")
    if selector is not None:
        must_have_labels(kind)
    board = Board(kind, names, selector, deployment)
    for_people = isinstance(output, Format) and not output.for_programs
    screen = for_people and fit_for_screens()
    gpus = gpu_names(api)
    if for_people and kind is INSTANCES:
        gpus.load()  # before a thread reads
    kinds = ",".join(lists_of(kind, selector, notes=with_notes and screen))
    updates = watch(api.for_thread(), kinds=kinds, deployment=deployment)
    if screen:
        _TableView(board, wide=output is Format.WIDE, with_notes=with_notes, gpus=gpus).follow(updates)
        return
    lines = _Lines(kind, output, gpus)
    for update in updates:
        if isinstance(update, Lost):
            print(printable(f"gpuward: {update.why}; trying again"), file=sys.stderr, flush=True)
        else:
            lines.print(board.take(update.events))


class _Lines:
    """Prints changes. The widths of columns grow, and never shrink, so that lines stay aligned."""

    def __init__(self, kind: Kind, output: Output, gpus: GpuNames) -> None:
        self._kind = kind
        self._gpus = gpus
        self._output = output
        self._widths: list[int] = []

    def print(self, changes: Sequence[Change]) -> None:
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
            return table_of(self._kind, views, now, wide=wide, gpus=self._gpus).rows

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


class _TableView:
    """Draws the objects of a board until Ctrl-C; then the last picture stays on the terminal."""

    def __init__(self, board: Board, *, wide: bool, with_notes: bool, gpus: GpuNames) -> None:
        self._gpus = gpus
        self._board = board
        self._wide = wide
        self._with_notes = with_notes
        self._note = ""

    def follow(self, updates: Iterator[Update | Lost]) -> None:
        self._take(next(updates))  # before the screen, which a refusal does not need
        with Screen() as screen:
            reading = Reading(updates)
            try:
                while True:
                    screen.draw(self.lines(*screen.size))
                    self._take_some(reading)
            finally:
                screen.leave_behind(self.lines(screen.size[0], None))

    def _take_some(self, reading: Reading[Update | Lost]) -> None:
        """Waits for a change, and then for those that follow within `_CALM_S`."""
        update = reading.take(_TICK_S)
        until = time.monotonic() + _CALM_S
        while update is not None:
            self._take(update)
            left = until - time.monotonic()
            update = reading.take(left) if left > 0 else None

    def _take(self, update: Update | Lost) -> None:
        if isinstance(update, Update):
            self._board.take(update.events)
            self._note = ""
        elif not self._note:
            self._note = printable(
                f"{update.why}; trying again, the table is of {datetime.now().astimezone():%H:%M:%S}"
            )

    def lines(self, columns: int, lines: int | None) -> list[str]:
        """The picture. `lines` of the terminal: the last line counts those that do not fit; None: all."""
        now = datetime.now(UTC)
        views = [read_view(self._board.kind.view, raw) for raw in self._board.shown()]
        body = [f"no {self._board.kind.plural} found"]
        if views:
            table = table_of(self._board.kind, views, now, wide=self._wide, gpus=self._gpus)
            body = table_lines(table, columns, colours=takes_colours())
        if self._with_notes:
            deployments = [read_view(DEPLOYMENTS.view, raw) for raw in self._board.deployments()]
            body += [printable(line) for line in notes(deployments)]
        head = [self._note] if self._note else []
        if lines is None or len(head) + len(body) <= lines:
            return head + body
        fit = max(1, lines - len(head) - 1)
        return [*head, *body[:fit], f"... {len(body) - fit} more lines; a taller terminal shows them"]
