"""Runtimes and images as text for lists and `describe`. Pure."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # slow to import
    from schemas.api.workers import RuntimeView


def runtimes(known: Iterable["RuntimeView"]) -> str:
    """The runtimes of a worker in a cell: `process,docker`; `docker(no GPUs)` where containers get no GPUs."""
    usable = [runtime.name if runtime.gpus else f"{runtime.name}(no GPUs)" for runtime in known if runtime.usable]
    return ",".join(["process", *usable])


def runtime_line(runtime: "RuntimeView") -> str:
    if not runtime.usable:
        return f"not usable: {runtime.reason or 'no reason given'}"
    version = f"version {runtime.version}" if runtime.version else "of unknown version"
    if runtime.gpus:
        return f"{version}, with GPUs"
    return f"{version}, without GPUs" + (f": {runtime.reason}" if runtime.reason else "")
