"""Warns where many engines would run on this machine, and confirms their start on a terminal.

All agents of `up` run here, so each engine is a process of this machine, also on simulated hosts.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Final

from cli.errors import CliError
from cli.transport.client import Api
from cli.transport.paths import parse, path_of
from schemas.api.deployments import DeploymentView

MANY: Final = 100
_POLL_S: Final = 10.0
_AT_REST: Final = frozenset({"stopped", "asleep", "succeeded", "failed", "deleting"})
_YES: Final = frozenset({"y", "yes"})

Question = Callable[[str], Awaitable[bool]]  # prints the text, and returns the answer


def count_wanted(api: Api) -> int:
    """The number of instances that the deployments want."""
    views = [parse(DeploymentView, raw) for raw in api.items(path_of("deployments"))]
    return sum(view.status.wanted for view in views if view.status.phase not in _AT_REST)


async def confirm_start(api: Api, warn: Callable[[str], None], question: Question | None) -> None:
    """Returns once engines may start. `question`: None without a terminal. Raises `CliError` if the answer is no."""
    wanted = await asyncio.to_thread(count_wanted, api)
    if wanted <= MANY:
        return
    warn(warning(wanted))
    if question is not None and not await question(f"Start up to {wanted} engines? [y/N]: "):
        raise CliError(
            "the engines were not started; run `gpuward controller` on this data folder and stop deployments, "
            "or answer yes"
        )


async def watch(api: Api, warn: Callable[[str], None]) -> None:
    """Warns whenever the number that deployments want rises above `MANY`. Runs until cancelled."""
    many = await _exceeds(api, None)
    while True:
        await asyncio.sleep(_POLL_S)
        many = await _exceeds(api, warn if not many else None)


async def _exceeds(api: Api, warn: Callable[[str], None] | None) -> bool:
    try:
        wanted = await asyncio.to_thread(count_wanted, api)
    except CliError:  # the next poll will show it
        return warn is None
    if wanted > MANY and warn is not None:
        warn(warning(wanted))
    return wanted > MANY


def warning(wanted: int) -> str:
    return (
        f"Warning: deployments want {wanted} engines, and each is a process of this machine. "
        f"Above {MANY}, memory or cores may run out; `gpuward scale` and `gpuward stop` reduce them."
    )


def terminal_question() -> Question | None:
    """None: this process has no terminal."""
    try:
        # a read from the terminal of another job would stop this process
        ours = sys.stdin is not None and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # no terminal, or a closed file
        return None
    return _confirm if ours else None


async def _confirm(question: str) -> bool:
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(sys.stdin.readline())

    print(question, end="", file=sys.stderr, flush=True)
    loop.add_reader(sys.stdin.fileno(), read)
    try:
        return (await line).strip().lower() in _YES  # a signal cancels the start
    finally:
        loop.remove_reader(sys.stdin.fileno())
