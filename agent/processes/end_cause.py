"""Why a process has ended, as far as it is known."""

import asyncio
import signal
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from agent.clock import Clock
from agent.processes.folders import InstanceFolders
from agent.processes.kept_record import KeptRecord
from agent.processes.procfs import oom_kills
from agent.processes.running import Running
from agent.state.process_records import ProcessKey
from schemas.exit_causes import KILLED_FOR_MEMORY, telling_line
from schemas.wire import GPU_MEMORY_HELD, StartOrder

_TAIL_LIMIT_S: Final = 5.0

log = structlog.get_logger()
BACK_LIMIT_S: Final = 20.0
_POLL_S: Final = 0.2


class EndCause(NamedTuple):
    """What is known of an end. `log_line`: the part of the message that is a line of the log; empty: none is."""

    message: str
    log_line: str = ""


async def end_cause(
    kept: KeptRecord, order: StartOrder, folders: InstanceFolders, group: Running, kills: deque[int]
) -> EndCause:
    """What is known of an end that nothing asked for: the kernel's kill, or the line of the log that tells most."""
    if killed := group.oom_message(order.host_memory_mib):
        return EndCause(killed)
    if group.end != "exit":
        return EndCause("")
    if not group.counts_oom_kills and group.exit_code == -signal.SIGKILL and oom_kills() > kills[0]:
        return EndCause(KILLED_FOR_MEMORY)
    if group.exit_code == 0 and not order.needs_port:
        return EndCause(kept.lasting_message)  # a task that is done
    try:
        async with asyncio.timeout(_TAIL_LIMIT_S):
            tail = await asyncio.to_thread(folders.log_tail, kept.key, kept.redactor)
    except OSError as error:  # TimeoutError is one
        log.warning("log not read", instance=kept.key.instance, error=str(error))
        return EndCause(kept.lasting_message)
    line = telling_line(tail, group.exit_code)
    return EndCause(line or kept.lasting_message, line)


async def memory_back(key: ProcessKey, listing: Callable[[ProcessKey], tuple[str, ...]], clock: Clock) -> str:
    """Waits until the driver lists an ended process on no GPU any more: only then is its memory back.

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
