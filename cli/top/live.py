"""`top` on a terminal: reads, takes keys and draws, until `q` or Ctrl-C."""

import os
import select
import signal
import sys
import threading
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
from cli.transport.reading import Background

_PERIOD_S: Final = 2.0
_PAUSE: Final = 3  # times the duration of a read, at least, until the next: a large cluster is read less often
_TICK_S: Final = 1.0  # the screen is drawn again after Ctrl-Z
_ESCAPE_S: Final = 0.05  # within which the rest of a key follows its escape
_CHUNK: Final = 1024


class Live:
    """The view of one terminal. A thread reads; the main one takes keys and draws."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._state = State()
        self._keys = KeyReader()
        self._picture = Picture([], 0, 1, [])
        self._requested: set[str] = set()  # GPUs whose graph was requested since the last complete read
        self._moved = threading.Event()  # the screen has a graph that was not requested
        self._woken, self._wakes = os.pipe()

    def run(self) -> None:
        """Draws until a key ends it. Raises `CliError`: the first read fails; later reads are retried."""
        snapshot = self._reader.all(most=MOST_LIVE)
        self._data = Data(snapshot, rows_of(snapshot), {})
        typed = sys.stdin is not None and sys.stdin.isatty()
        with Screen(keys=typed) as screen, self._resizes():
            reading = Background(self._read)
            while not self._state.ended and reading.is_alive():
                self._draw(screen)
                self._wait([self._woken, sys.stdin.fileno()] if typed else [self._woken])
            if not self._state.ended:
                reading.result()

    def _draw(self, screen: Screen) -> None:
        self._picture = picture_of(self._state, self._data, screen.size, colours=takes_colours())
        screen.draw(self._picture.lines)
        if not self._requested.issuperset(self._picture.graphs):
            self._moved.set()

    @contextmanager
    def _resizes(self) -> Iterator[None]:
        os.set_blocking(self._wakes, False)
        before = signal.signal(signal.SIGWINCH, lambda *_: self._wake())
        try:
            yield
        finally:
            signal.signal(signal.SIGWINCH, before)

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # a full pipe wakes it already
            os.write(self._wakes, b".")

    def _wait(self, sources: list[int]) -> None:
        ready, _, _ = select.select(sources, [], [], _ESCAPE_S if self._keys.undecided else _TICK_S)
        if self._woken in ready:
            os.read(self._woken, _CHUNK)
        if len(ready) > (self._woken in ready):
            self._read_keys()
        elif self._keys.undecided:
            self._press(self._keys.settle())

    def _read_keys(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), _CHUNK)
        except OSError:
            data = b""
        if data:
            self._press(self._keys.feed(data))
        else:  # the terminal has gone
            self._state = replace(self._state, ended=True)

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            self._state = press(self._state, key, rows=self._picture.rows, page=self._picture.page)

    def _read(self) -> None:
        """Reads everything at each period, and in between the graphs of rows that have scrolled into view."""
        due_s = time.monotonic() + _PERIOD_S
        while True:
            self._moved.wait(max(0.0, due_s - time.monotonic()))
            self._moved.clear()
            started_s = time.monotonic()
            try:
                if started_s >= due_s:
                    due_s = started_s + _PERIOD_S  # also after an error
                    self._read_all()
                    due_s = time.monotonic() + max(_PERIOD_S, _PAUSE * (time.monotonic() - started_s))
                else:
                    self._read_graphs()
            except CliError as error:  # any error, while a controller restarts
                at = f"{self._data.snapshot.now.astimezone():%H:%M:%S}"
                self._data = self._data._replace(note=f"{str(error).splitlines()[0]}; retrying, last read at {at}")
            self._wake()

    def _read_all(self) -> None:
        snapshot = self._reader.all(most=MOST_LIVE)
        graphs = self._picture.graphs
        series = self._reader.series(graphs)
        self._requested = set(graphs)
        self._data = Data(snapshot, rows_of(snapshot), series)

    def _read_graphs(self) -> None:
        new = [gpu for gpu in self._picture.graphs if gpu not in self._requested]
        self._requested.update(new)
        series = {**self._data.series, **self._reader.series(new)}
        self._data = self._data._replace(series=series)
