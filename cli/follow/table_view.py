"""A followed list on a terminal: the table in its place, as `gpuward ps` prints it."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from cli.follow.board import Board
from cli.follow.watch import Lost, Update
from cli.objects.kind import table_of
from cli.objects.kinds import DEPLOYMENTS
from cli.objects.views import read_view
from cli.printing.output import takes_colours
from cli.printing.table import table_lines
from cli.terminal.screen import Screen
from cli.text.formatting import printable
from cli.text.scaling import notes
from cli.transport.reading import Reading

_CALM_S: Final = 0.5  # between two pictures
_TICK_S: Final = 2.0  # ages move though nothing changes


class TableView:
    """Draws the objects of a board until Ctrl-C; then the last picture stays on the terminal.

    `wide`: as with `-o wide`; `with_notes`: as `ps` has them below its table.
    """

    def __init__(self, board: Board, *, wide: bool, with_notes: bool) -> None:
        self._board = board
        self._wide = wide
        self._with_notes = with_notes
        self._note = ""

    def follow(self, updates: Iterator[Update | Lost]) -> None:
        """Draws what the watch reports.

        Raises:
            CliError: see `watch`.
        """
        self._take(next(updates))  # a refusal needs no screen
        with Screen() as screen:
            reading = Reading(updates)
            try:
                while True:
                    screen.draw(self.lines(*screen.size))
                    self._take_some(reading)
            finally:
                screen.leave_behind(self.lines(screen.size[0], None))

    def _take_some(self, reading: Reading[Update | Lost]) -> None:
        """Waits for a change, and then for those that come soon after it."""
        one = reading.take(_TICK_S)
        until = time.monotonic() + _CALM_S
        while one is not None:
            self._take(one)
            left = until - time.monotonic()
            one = reading.take(left) if left > 0 else None

    def _take(self, one: Update | Lost) -> None:
        if isinstance(one, Update):
            self._board.take(one.events)
            self._note = ""
        elif not self._note:
            self._note = printable(f"{one.why}; trying again, the table is of {datetime.now().astimezone():%H:%M:%S}")

    def lines(self, columns: int, lines: int | None) -> list[str]:
        """The picture; what does not fit is counted. `lines`: of the terminal; None: all."""
        now = datetime.now(UTC)
        views = [read_view(self._board.kind.view, raw) for raw in self._board.shown()]
        found = [f"no {self._board.kind.plural} found"]
        if views:
            table = table_of(self._board.kind, views, now, wide=self._wide)
            found = table_lines(table, columns, colours=takes_colours())
        if self._with_notes:
            deployments = [read_view(DEPLOYMENTS.view, raw) for raw in self._board.deployments()]
            found += [printable(line) for line in notes(deployments)]
        head = [self._note] if self._note else []
        if lines is None or len(head) + len(found) <= lines:
            return head + found
        fit = max(1, lines - len(head) - 1)
        return [*head, *found[:fit], f"... {len(found) - fit} more lines; a taller terminal shows them"]
