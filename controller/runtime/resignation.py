"""Has a controller lead no more while it still serves, as where its agents are about to stop with it."""

import asyncio


class Resignation:
    """Asks a controller to lead no more while it goes on to serve.

    Attributes:
        asked: set it.
        done: it does not lead, and will not.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.done = asyncio.Event()

    async def carry_out(self, leading: asyncio.Task[None]) -> None:
        """Waits until it is asked for, then ends the task that holds the lease, or campaigns for it."""
        await self.asked.wait()
        leading.cancel()
        await asyncio.wait({leading})
        self.done.set()
