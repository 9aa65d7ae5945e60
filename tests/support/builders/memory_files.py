"""A model's files in memory, which count the bytes that are read."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class MemoryFiles:
    """See ModelFiles."""

    name = "model"
    revision: str | None = None

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = contents
        self.sizes: Mapping[str, int] = {name: len(content) for name, content in contents.items()}
        self.read_bytes = 0

    def read(self, name: str, start: int, length: int) -> bytes:
        part = self._contents[name][start : start + length]
        self.read_bytes += len(part)
        return part

    def each(self, function: Callable[[str], T], names: Iterable[str]) -> Iterator[T]:
        return map(function, names)
