"""A followed list on a terminal: the table in its place, as `gpuward ps` prints it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from cli.follow.board import Board
from cli.follow.watch import Lost, Told
from cli.objects.kind import table_of
from cli.objects.kinds import DEPLOYMENTS
from cli.objects.views import read_view
from cli.printing.output import takes_colours
from cli.printing.table import table_lines
from cli.terminal.screen import Screen
from cli.text.formatting import printable
from cli.text.scaling import notes

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
        self._changed = asyncio.Event()

    async def follow(self, told: AsyncIterator[Told | Lost]) -> None:
        """Draws what is told.

        Raises:
            CliError: see `watch`.
        """
        first = await anext(told)  # a refusal needs no screen
        self._take(first)
        with Screen() as screen:
            reading = asyncio.create_task(self._read(told), name="watch")
            reading.add_done_callback(lambda _: self._changed.set())
            try:
                while not reading.done():
                    screen.draw(self.lines(*screen.size))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_TICK_S):
                            await self._changed.wait()
                    self._changed.clear()
                    await asyncio.sleep(_CALM_S)
                await reading
            finally:
                reading.cancel()
                screen.leave_behind(self.lines(screen.size[0], None))

    async def _read(self, told: AsyncIterator[Told | Lost]) -> None:
        async for one in told:
            self._take(one)
            self._changed.set()

    def _take(self, one: Told | Lost) -> None:
        if isinstance(one, Told):
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
