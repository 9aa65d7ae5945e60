"""Waits after the end of an engine until the driver gives its memory back."""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from agent.clock import Clock
from agent.state.process_records import ProcessKey
from schemas.wire import GPU_MEMORY_HELD

BACK_LIMIT_S: Final = 20.0
_POLL_S: Final = 0.2

log = structlog.get_logger()


async def memory_back(key: ProcessKey, listing: Callable[[ProcessKey], tuple[str, ...]], clock: Clock) -> str:
    """Waits until the driver lists an ended process on no GPU any more: only then is its memory back.

    Args:
        key: the process.
        listing: the GPUs on which the driver listed it at the newest reading.
        clock: seconds since the host's boot.

    Returns:
        Why the end is reported all the same, a code and a text; empty: the memory is back.
    """
    deadline_s = clock() + BACK_LIMIT_S
    while gpus := listing(key):
        if clock() >= deadline_s:
            log.warning("GPU memory of an ended engine not back", instance=key.instance, gpus=gpus)
            return f"{GPU_MEMORY_HELD}: {BACK_LIMIT_S:g} s after its end the driver still lists it on {gpus[0]}"
        await asyncio.sleep(_POLL_S)
    return ""
