"""Runtimes and images as text for lists and `describe`. Pure."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # slow to import
    from schemas.api.workers import RuntimeView


def runtimes(known: Iterable["RuntimeView"]) -> str:
    """What a worker runs, in one cell: `process,docker`; `docker(no GPUs)` where containers get none."""
    usable = [one.name if one.gpus else f"{one.name}(no GPUs)" for one in known if one.usable]
    return ",".join(["process", *usable])


def runtime_line(one: "RuntimeView") -> str:
    """A runtime in words: its version, and what it lacks."""
    version = f"version {one.version}" if one.version else "of unknown version"
    if not one.usable:
        return f"not usable: {one.reason or 'no reason given'}"
    return (
        f"{version}, with GPUs" if one.gpus else f"{version}, without GPUs" + (f": {one.reason}" if one.reason else "")
    )
