"""Bodies in pieces, and the bound on the bytes of request bodies that are held at once: in all, and for each key."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final


class BodiesFullError(Exception):
    """A body does not fit. `of_key`: into its key's bound; else into that of all keys."""

    def __init__(self, limit_bytes: int, *, of_key: bool) -> None:
        super().__init__(f"request bodies in flight would exceed {limit_bytes} bytes")
        self.of_key = of_key
        self.limit_bytes = limit_bytes


class Hold:
    """Bytes that the body of one request holds; they grow while it arrives."""

    __slots__ = ("_bodies", "key", "size")

    def __init__(self, bodies: "Bodies", key: str) -> None:
        self._bodies = bodies
        self.key = key
        self.size = 0

    def take(self, size: int) -> None:
        """Holds `size` more bytes.

        Raises:
            BodiesFullError: they do not fit; nothing more is held then.
        """
        self._bodies.add(self.key, size)
        self.size += size

    def take_up_to(self, size: int) -> None:
        """Holds `size` bytes in all, unless it already holds as many.

        Raises:
            BodiesFullError: they do not fit; nothing more is held then.
        """
        if size > self.size:
            self._bodies.add(self.key, size - self.size)
            self.size = size


class Bodies:
    """The bodies of one server, bounded in bytes.

    `refused` is called with `key` or `all` for each body that does not fit, by the bound that refuses it.
    """

    def __init__(self, most: int, most_per_key: int, *, refused: Callable[[str], None] = lambda _bound: None) -> None:
        self._refused = refused
        self._most = most
        self._most_per_key = most_per_key
        self._of_key: dict[str, int] = {}
        self.held = 0

    @contextmanager
    def hold(self, key: str, expected: int = 0) -> Iterator[Hold]:
        """Holds a request's body, of which `expected` bytes are announced, until the context ends.

        Raises:
            BodiesFullError: the announced bytes do not fit.
        """
        hold = self.begin(key)
        try:
            hold.take(expected)
            yield hold
        finally:
            self.release(hold)

    def begin(self, key: str) -> Hold:
        """Holds a request's body until `release`; nothing of it at first."""
        return Hold(self, key)

    def release(self, hold: Hold) -> None:
        """Frees what a body holds; repeating it changes nothing."""
        size, hold.size = hold.size, 0
        self.held -= size
        left = self._of_key.get(hold.key, 0) - size
        if left > 0:
            self._of_key[hold.key] = left
        else:
            self._of_key.pop(hold.key, None)

    def add(self, key: str, size: int) -> None:
        """Counts `size` more bytes for a key.

        Raises:
            BodiesFullError: they do not fit; nothing is counted then.
        """
        of_key = self._of_key.get(key, 0) + size
        if of_key > self._most_per_key:
            self._refused("key")
            raise BodiesFullError(self._most_per_key, of_key=True)
        if self.held + size > self._most:
            self._refused("all")
            raise BodiesFullError(self._most, of_key=False)
        self.held += size
        if of_key:
            self._of_key[key] = of_key


_TINY_BYTES: Final = 1024


def keep(parts: list[bytes], data: bytes) -> None:
    """Adds a part, to the last one where both are tiny."""
    if parts and len(data) < _TINY_BYTES and len(parts[-1]) < _TINY_BYTES:
        parts[-1] += data
    else:
        parts.append(data)
