"""The output of a program, within a limit of time and size."""

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import Mapping
from typing import Final

_END_LIMIT_S: Final = 1.0
_DROP_BYTES: Final = 65_536


async def output_of(
    argv: list[str],
    limit_s: float,
    *,
    env: Mapping[str, str] | None = None,
    given: bytes = b"",
    stderr: bool = True,
    most_bytes: int = 65_536,
) -> tuple[str, str]:
    """Output of a program, and why it failed (empty if it did not). Its process group is killed after `limit_s`.

    `given` is its input, at most a few KiB. Without `stderr` the reason quotes no output. Output beyond `most_bytes` is
    not read.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE if given else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if stderr else asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env=env,
        )
    except OSError as error:
        return "", f"it cannot be started: {error.strerror or error}"
    if process.stdout is None:
        raise AssertionError("the program was started with a pipe")
    try:
        async with asyncio.timeout(limit_s):
            if process.stdin is not None:
                with contextlib.suppress(ConnectionError):  # it ended without reading; its exit code shows why
                    give(process.stdin, given)
                process.stdin.close()
            text = (await _read(process.stdout, most_bytes)).decode(errors="replace")
            code = await process.wait()
    except TimeoutError:
        return "", f"it does not answer within {limit_s:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have changed its user
                os.killpg(process.pid, signal.SIGKILL)
        await _end(process, process.stdout)
    last = f": {(text.strip().splitlines() or [''])[-1][:200]}" if stderr else ""
    return text, "" if code == 0 else f"it exits with code {code}{last}"


async def _end(process: asyncio.subprocess.Process, stream: asyncio.StreamReader) -> None:
    # Bounded, since asyncio waits for the end of the pipe, which another process may keep open.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_END_LIMIT_S):
            while await stream.read(_DROP_BYTES):
                pass
            await process.wait()


async def _read(stream: asyncio.StreamReader, most_bytes: int) -> bytes:
    """Reads up to the end or the bound; a single read returns only what is buffered."""
    text = b""
    while len(text) < most_bytes and (piece := await stream.read(most_bytes - len(text))):
        text += piece
    return text


def give(stdin: asyncio.StreamWriter, data: bytes) -> None:
    """Writes to a program, without waiting. Raises BrokenPipeError if it has ended."""
    # asyncio's own loop raises only in `drain`, and uvloop raises a RuntimeError.
    if stdin.is_closing():
        raise BrokenPipeError(errno.EPIPE, "the program has ended")
    stdin.write(data)
