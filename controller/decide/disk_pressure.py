"""When the disk of a worker counts as full. Pure."""

from typing import Final

_LEAST_BYTES: Final = 2**30
_LEAST_SHARE: Final = 0.02  # of a small disk
_ENOUGH: Final = 2  # times as much ends it, so that a log that grows and is cut does not end and begin it


def disk_is_full(free_bytes: int, disk_bytes: int, *, known: bool | None) -> bool | None:
    """Whether no more instances should be placed on a host with `free_bytes` free in the agent's data folder.

    `disk_bytes`: the size of that file system. `known`: the result before, None if unknown; it lasts while the free
    space is between both limits.
    """
    least = min(_LEAST_BYTES, int(disk_bytes * _LEAST_SHARE))
    if free_bytes < least:
        return True
    return known if free_bytes < _ENOUGH * least else False
