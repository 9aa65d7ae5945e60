"""GPUs as tables and sentences name them: `gpu-a1:0`."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from cli.text.formatting import short_gpu

_UUID: Final = re.compile(r"(?<![\w-])(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-])")


class GpuNames:
    """Puts the names of GPUs in the place of their UUIDs.

    `read`: the names by UUID. It is called for each UUID that has no name yet, so it bounds how often it reads.
    """

    def __init__(self, read: Callable[[], Mapping[str, str]] = dict) -> None:
        self._read = read
        self._by_uuid: Mapping[str, str] = {}

    def load(self) -> None:
        """Reads the names now, as before other threads use the client."""
        self._by_uuid = self._read()

    def in_cell(self, text: str) -> str:
        """The text with names; of unknown GPUs the first block of the UUID."""
        return _UUID.sub(lambda found: self._name_of(found[0]) or short_gpu(found[0]), text)

    def in_text(self, text: str) -> str:
        """The text with names; UUIDs of unknown GPUs stay."""
        return _UUID.sub(lambda found: self._name_of(found[0]) or found[0], text)

    def _name_of(self, uuid: str) -> str | None:
        if uuid not in self._by_uuid:
            self.load()
        return self._by_uuid.get(uuid)
