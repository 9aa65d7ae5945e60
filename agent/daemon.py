"""Runs an agent in this process or loop: signals, readiness and the exit code."""

import asyncio
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
import uvloop

from agent.agent import Agent
from agent.decide.engine_accounts import UNUSED_UIDS
from agent.errors import AgentError, NoGpusError
from agent.gpus.child_reader import ChildReader
from agent.processes.engine_accounts import why_not_isolated
from agent.settings import AgentSettings
from http1.daemon.service_manager import READY, ServiceManager, until_signalled
from schemas.log_lines import configure_logs
from schemas.unknown_variables import unknown_variables
from schemas.wire import SPOKEN, Protocols

_GC_THRESHOLDS: Final = (20_000, 20, 20)  # requests leave few cycles

log = structlog.get_logger()


def main(settings: AgentSettings) -> int:
    """Runs an agent until SIGTERM or SIGINT; returns the exit code."""
    manager = ServiceManager.claim()
    configure_logs(json=settings.log_format == "json")
    for name, advice in unknown_variables(os.environ.items()).items():
        log.warning("unknown environment variable is ignored", variable=name, advice=advice)

    async def serve(stop: asyncio.Event) -> int:
        return await run_agent(settings, stop=stop, on_started=lambda: manager.tell(READY))

    gc.collect()
    gc.freeze()  # what is loaded now stays: a collection that looks at it delays every answer
    gc.set_threshold(*_GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(until_signalled(manager, serve))


async def run_agent(
    settings: AgentSettings,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[], None] | None = None,
    on_started: Callable[[], None] = lambda: None,
    spoken: Protocols = SPOKEN,
) -> int:
    """Runs an agent until `stop` is set. Several may run in one loop. Installs no signal handlers.

    Cancelling it is like a crash: engines keep running, and the next agent on the same data folder adopts them.

    Args:
        settings: validated settings.
        stop: set it for a clean shutdown; `settings.on_exit` decides whether the engines stop.
        on_ready: called once, at the controller's first welcome.
        on_started: called once it looks after its engines, with a controller or without.
        spoken: the protocols that it offers to the controller.

    Returns:
        0 after a clean shutdown; 1 if the agent cannot run or was refused (the reason is logged).
    """
    try:
        await Agent(settings, stop, on_ready, on_started, spoken).run()
    except AgentError as error:
        log.error("agent failed", error=str(error))  # noqa: TRY400 - the message says what to do; a trace would hide it
        return 1
    return 0


async def count_real_gpus() -> int:
    """Number of GPUs that NVML finds on this host; 0 if NVML does not load. Takes seconds at most."""
    reader = ChildReader()
    try:
        await reader.open()
        return len(await reader.read() or ())
    except NoGpusError:
        return 0
    finally:
        await reader.aclose()


def accounts_for_engines(*needed: Path) -> tuple[str | None, str]:
    """The setting `engine_user` that gives each instance an account of its own, or None and why that cannot be."""
    why = why_not_isolated(needed)
    return (None, why) if why else (UNUSED_UIDS, "")
