"""How an engine ended, as its parent has recorded it next to its log.

The file is the agent's alone, also where engines run as accounts of their own. Its space is reserved before the start,
so that an end is recorded on a full disk too.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

_BYTES: Final = 512  # as in parent_main.py


class Usage(BaseModel):
    """What the engine and the children that it has waited for have used."""

    model_config = ConfigDict(frozen=True)
    user_s: float
    system_s: float
    max_rss_kib: int


class EngineEnd(BaseModel):
    """The end of the process that an agent has started."""

    model_config = ConfigDict(frozen=True)
    pid: int  # of the engine; with `start_ticks` it identifies the process
    start_ticks: int  # its start, in the kernel's ticks since boot
    code: int  # its exit code; negative: killed by that signal
    ended_at: float  # seconds since 1970
    # the parent was signalled to end as well, as all processes are where a host shuts down, or by a forced end of
    # `gpuward up`
    asked: bool
    oom_kills: bool  # the kernel killed a process of this host for want of memory within the last 20 seconds
    usage: Usage | None = None  # None until the agent has released the parent


def reserve_record(path: Path) -> int:
    """Makes an empty record with its space; returns its descriptor, which the caller closes.

    A full disk does not prevent the start: there may be space by the time of the end.

    Raises:
        OSError: it cannot be made.
    """
    path.unlink(missing_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):
        os.write(file, b" " * _BYTES)
    return file


@dataclass(frozen=True, slots=True)
class EndRecord:
    """Where the end of one process is recorded."""

    path: Path
    pid: int | None
    start_ticks: int | None

    def read(self) -> EngineEnd | None:
        """Its end; None: it is unknown, since its parent died before it or never was."""
        try:
            with self.path.open("rb") as file:
                end = EngineEnd.model_validate_json(file.read(_BYTES).strip() or b"null")
        except (OSError, ValidationError):
            return None
        return end if (end.pid, end.start_ticks) == (self.pid, self.start_ticks) else None

    def remove(self) -> None:
        """Removes it; a parent that still waits to be released then ends as well."""
        with suppress(OSError):
            self.path.unlink()
