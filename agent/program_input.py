"""What a program reads, which may have ended meanwhile."""

import asyncio
import errno


def give(stdin: asyncio.StreamWriter, data: bytes) -> None:
    """Writes to a program, without waiting.

    Raises:
        BrokenPipeError: it has ended. asyncio's own loop says so in `drain` alone; uvloop says it by a RuntimeError.
    """
    if stdin.is_closing():
        raise BrokenPipeError(errno.EPIPE, "the program has ended")
    stdin.write(data)
