"""GPUs as tables and sentences name them: `gpu-a1:0`."""

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

from cli.text.formatting import gpu_name, short_gpu

_UUID: Final = re.compile(r"(?<![\w-])(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-])")
_ABSENT: Final = "absent"


class GpuNames:
    """Puts the names of GPUs in the place of their UUIDs. The names are read where the first UUID needs one."""

    def __init__(self, read: Callable[[], Mapping[str, str]] = dict) -> None:
        self._read = read

    @cached_property
    def _by_uuid(self) -> Mapping[str, str]:
        return self._read()

    def load(self) -> None:
        """Reads the names now, as before other threads use the client."""
        len(self._by_uuid)

    def in_cell(self, text: str) -> str:
        """The text with names; of unknown GPUs the first block of the UUID."""
        return _UUID.sub(lambda found: self._by_uuid.get(found[0]) or short_gpu(found[0]), text)

    def in_text(self, text: str) -> str:
        """The text with names; UUIDs of unknown GPUs stay."""
        return _UUID.sub(lambda found: self._by_uuid.get(found[0], found[0]), text)


def names_in_map(raw: Mapping[str, Any]) -> dict[str, str]:
    """The names of GPUs by UUID, from the API's map. Slices and absent GPUs have no index of their own."""
    gpus, workers = raw["gpus"], raw["workers"]["name"]
    columns = zip(gpus["uuid"], gpus["worker"], gpus["index"], gpus["state"], strict=True)
    return {
        uuid: gpu_name(uuid, workers[worker], None if state == _ABSENT or uuid.startswith("MIG-") else index)
        for uuid, worker, index, state in columns
    }
