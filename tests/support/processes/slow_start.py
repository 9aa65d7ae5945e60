"""Programs that have ended before their starter goes on, as on a busy machine."""

import asyncio
from typing import Any

import pytest

_LIMIT_S = 20.0


async def ended(process: asyncio.subprocess.Process) -> None:
    """Waits until the process has ended, and the loop has seen that of what it reads."""
    async with asyncio.timeout(_LIMIT_S):
        await process.wait()
        while process.stdin is not None and not process.stdin.is_closing():  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)


def start_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on each program has ended when its start returns: only for those that read nothing."""
    start = asyncio.create_subprocess_exec

    async def and_wait(*argv: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*argv, **options)
        await ended(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", and_wait)
