"""The names of GPUs, read from the API's map."""

import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any, Final

import msgspec

from cli.errors import CliError
from cli.text.formatting import gpu_name
from cli.text.gpu_names import GpuNames
from cli.transport.client import Api
from cli.transport.paths import path_of

_ABSENT: Final = "absent"
_AGAIN_S: Final = 10.0  # between two reads


class _Workers(msgspec.Struct):
    name: list[str]


class _Gpus(msgspec.Struct):
    uuid: list[str]
    worker: list[int]
    index: list[int]
    state: list[str]


class _Map(msgspec.Struct):
    """The columns of a `MapView` that name GPUs: those of an older or newer API may lack others."""

    workers: _Workers
    gpus: _Gpus


def gpu_names(api: Api) -> GpuNames:
    """Names that are read once needed, and again for a new GPU. Where the map cannot be read, there are none."""
    names: Mapping[str, str] = {}
    read_at = -inf

    def read() -> Mapping[str, str]:
        nonlocal names, read_at
        if time.monotonic() - read_at >= _AGAIN_S:
            with suppress(CliError, msgspec.ValidationError, ValueError, IndexError):
                names = names_in_map(api.get(path_of("map")))
            read_at = time.monotonic()
        return names

    return GpuNames(read)


def names_in_map(raw: Mapping[str, Any]) -> dict[str, str]:
    """The names of GPUs by UUID, from the API's map. Slices and absent GPUs have no index of their own.

    Raises:
        msgspec.ValidationError, ValueError, IndexError: the map has another shape.
    """
    read = msgspec.convert(raw, _Map)
    gpus, workers = read.gpus, read.workers.name
    columns = zip(gpus.uuid, gpus.worker, gpus.index, gpus.state, strict=True)
    return {
        uuid: gpu_name(uuid, workers[worker], None if state == _ABSENT or uuid.startswith("MIG-") else index)
        for uuid, worker, index, state in columns
    }
