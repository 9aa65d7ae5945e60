"""Threads that read while a verb draws, or several streams at once."""

import threading
from collections.abc import Callable, Iterator
from queue import Empty, Queue
from typing import Final, Generic, TypeVar, cast

T = TypeVar("T")
_MOST: Final = 16  # queued items: a slow terminal slows the streams


class Background(threading.Thread):
    """A daemon thread, started at once, that keeps the error of its call for `result`."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__(target=call, name="reading", daemon=True)
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:  # noqa: BLE001 - another thread raises it
            self._error = error

    def result(self) -> None:
        """Waits for the end of the call; raises its error."""
        self.join()
        if self._error is not None:
            raise self._error


class Reading(Generic[T]):
    """The items of iterators, which have a thread each. Raises an iterator's error where its items end."""

    def __init__(self, *sources: Iterator[T]) -> None:
        self._queue: Queue[T | Background] = Queue(_MOST)
        self._left = len(sources)
        for source in sources:
            Background(lambda source=source: self._read(source))  # type: ignore[misc]

    def __iter__(self) -> Iterator[T]:
        while self._left:
            if (item := self.take(None)) is not None:
                yield item

    def take(self, timeout_s: float | None) -> T | None:
        """The next item; None: the time is over, or an iterator has ended."""
        try:
            item = self._queue.get(timeout=timeout_s)
        except Empty:
            return None
        if isinstance(item, Background):
            self._left -= 1
            item.result()
            return None
        return item

    def _read(self, source: Iterator[T]) -> None:
        try:
            for item in source:
                self._queue.put(item)
        finally:
            self._queue.put(cast("Background", threading.current_thread()))
