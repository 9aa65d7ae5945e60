"""An event loop whose clock a test moves on, so that minutes of silence on real sockets take no time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

_STEP_S = 1.0  # less than any limit
_TURNS = 4  # of the loop after each step: what is due now happens, and what follows from it


class LeapingLoop(asyncio.SelectorEventLoop):
    """Its time is the system's and what tests have added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.added_s = 0.0

    def time(self) -> float:
        return super().time() + self.added_s


async def pass_time(seconds: float) -> None:
    """Moves the running loop's clock on in small steps, each with its timers and its sockets."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LeapingLoop)
    for _ in range(round(seconds / _STEP_S)):
        loop.added_s += _STEP_S
        for _ in range(_TURNS):
            await asyncio.sleep(0)


def run_leaping(test: Callable[[], Awaitable[Any]]) -> None:
    """Runs a test in such a loop."""

    async def run() -> None:
        await test()

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(run())
