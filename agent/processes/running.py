"""What the lifecycle needs of a process that runs: a process group of the host, or a container."""

import asyncio
from typing import Protocol

from schemas.wire import ExitReason


class Running(Protocol):
    """One process and all that it has started."""

    exited: asyncio.Event
    exit_code: int | None  # negative: killed by that signal; None: unknown

    @property
    def end(self) -> ExitReason:
        """Why it is over, if nothing has asked for that."""

    @property
    def end_note(self) -> str:
        """What is not known of its end, and why it is certain all the same; empty: all is known."""

    @property
    def is_unknown(self) -> bool:
        """Whether it cannot be told now that it runs and answers. What a probe finds then says nothing of it."""

    @property
    def is_proxied(self) -> bool:
        """Whether its port accepts connections before the engine does."""

    @property
    def counts_oom_kills(self) -> bool:
        """Whether `oom_message` sees all kills for want of memory."""

    def terminate(self) -> None:
        """Asks all of it to end."""

    async def kill(self, limit_s: float) -> str:
        """Kills it until nothing is left or `limit_s` has passed; returns what is left, empty if nothing is."""

    def oom_message(self, host_memory_mib: int | None) -> str:
        """Why the kernel has killed it, a code and a text; empty: it has not."""

    async def forget(self) -> None:
        """Removes what is left of it on the host, after its end was journalled."""

    async def aclose(self) -> None:
        """Ends the watch; does nothing to the process."""
