"""A running process: a process group of the host, or a container."""

import asyncio
from typing import Protocol

from schemas.wire import ExitReason


class Running(Protocol):
    """One process with its children."""

    exited: asyncio.Event
    exit_code: int | None  # negative: killed by that signal; None: unknown

    @property
    def end(self) -> ExitReason:
        """The reason of an end without a stop."""

    @property
    def end_note(self) -> str:
        """Unknown properties of its end, and why the end is certain; empty if all is known."""

    @property
    def is_unknown(self) -> bool:
        """Whether its state is unknown now. A failed probe then shows nothing."""

    @property
    def is_proxied(self) -> bool:
        """Whether its port accepts connections before the engine does."""

    @property
    def counts_oom_kills(self) -> bool:
        """Whether `oom_message` covers all kills for lack of memory."""

    def terminate(self) -> None:
        """Sends SIGTERM."""

    async def kill(self, limit_s: float) -> str:
        """Kills it for at most `limit_s`; returns the survivors, as text."""

    def oom_message(self, host_memory_mib: int | None) -> str:
        """A code and a text if the kernel killed it for lack of memory, else empty."""

    async def forget(self) -> None:
        """Removes its leftovers on the host, after its end was journalled."""

    async def aclose(self) -> None:
        """Ends the watch, not the process."""
