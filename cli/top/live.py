"""`top` on a terminal: it reads, takes keys and draws, until `q` or Ctrl-C."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from cli.errors import CliError
from cli.printing.output import takes_colours
from cli.terminal.keys import KeyReader
from cli.terminal.screen import Screen
from cli.top.model import State, press
from cli.top.picture import Data, Picture, picture_of
from cli.top.read import MOST_LIVE, Reader
from cli.top.rows import rows_of

_PERIOD_S: Final = 2.0
_SHARE: Final = 3  # of a read's own time, at least that long is the pause after it: a large cluster is read less often
_TICK_S: Final = 1.0  # after Ctrl-Z the screen is drawn anew though nothing changed
_ESCAPE_S: Final = 0.05  # in which the rest of a key comes after its escape
_CHUNK: Final = 1024


class Live:
    """The view of one terminal."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._state = State()
        self._keys = KeyReader()
        self._picture = Picture([], 0, 1, [])
        self._asked: set[str] = set()  # GPUs of which the graph was asked for since the last whole read
        self._changed = asyncio.Event()
        self._moved = asyncio.Event()  # a graph is shown that was not read

    async def run(self) -> None:
        """Draws until a key ends it.

        Raises:
            CliError: the first read fails; later ones are tried again.
        """
        snapshot = await self._reader.all(most=MOST_LIVE)
        self._data = Data(snapshot, rows_of(snapshot), {})
        typed = sys.stdin is not None and sys.stdin.isatty()
        with Screen(keys=typed) as screen, self._signals(typed=typed):
            reading = asyncio.create_task(self._read(), name="top")
            reading.add_done_callback(lambda _: self._changed.set())
            try:
                while not (self._state.ended or reading.done()):
                    self._draw(screen)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_TICK_S):
                            await self._changed.wait()
                    self._changed.clear()
                if reading.done():
                    reading.result()
            finally:
                reading.cancel()

    def _draw(self, screen: Screen) -> None:
        self._picture = picture_of(self._state, self._data, screen.size, colours=takes_colours())
        screen.draw(self._picture.lines)
        if not self._asked.issuperset(self._picture.graphs):
            self._moved.set()

    @contextmanager
    def _signals(self, *, typed: bool) -> Iterator[None]:
        """Keys, and another size of the terminal."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        if typed:
            loop.add_reader(sys.stdin.fileno(), self._type)
        try:
            yield
        finally:
            if typed:
                loop.remove_reader(sys.stdin.fileno())
            loop.remove_signal_handler(signal.SIGWINCH)

    def _type(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), _CHUNK)
        except OSError:
            data = b""
        if not data:  # the terminal has gone
            self._state = replace(self._state, ended=True)
            self._changed.set()
            return
        self._press(self._keys.feed(data))
        if self._keys.undecided:
            asyncio.get_running_loop().call_later(_ESCAPE_S, lambda: self._press(self._keys.settle()))

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            self._state = press(self._state, key, rows=self._picture.rows, page=self._picture.page)
        if keys:
            self._changed.set()

    async def _read(self) -> None:
        """Reads all at each period, and in between the graphs of rows that have come onto the screen."""
        due_s = time.monotonic() + _PERIOD_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due_s - time.monotonic())):
                    await self._moved.wait()
            self._moved.clear()
            begun_s = time.monotonic()
            try:
                if begun_s >= due_s:
                    due_s = begun_s + _PERIOD_S  # also where it fails
                    await self._read_all()
                    due_s = time.monotonic() + max(_PERIOD_S, _SHARE * (time.monotonic() - begun_s))
                else:
                    await self._read_graphs()
            except CliError as error:  # any error, while a controller restarts
                at = f"{self._data.snapshot.now.astimezone():%H:%M:%S}"
                self._data = self._data._replace(note=f"{str(error).splitlines()[0]}; retrying, last read at {at}")
            self._changed.set()

    async def _read_all(self) -> None:
        snapshot = await self._reader.all(most=MOST_LIVE)
        graphs = self._picture.graphs
        series = await self._reader.series(graphs)
        self._asked = set(graphs)
        self._data = Data(snapshot, rows_of(snapshot), series)

    async def _read_graphs(self) -> None:
        new = [gpu for gpu in self._picture.graphs if gpu not in self._asked]
        self._asked.update(new)
        series = {**self._data.series, **await self._reader.series(new)}
        self._data = self._data._replace(series=series)
