"""Long bodies: one of each key at a time, and in a child where the decode would hold the loop for too long.

The decoder keeps the interpreter's lock, so that a thread would hold the loop as well.
"""

import asyncio
import os
import random
import string
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
import structlog

from gateway.bodies.child import ChildAnswer
from gateway.bodies.json_body import JsonBody, read_json
from gateway.bodies.parameters import BadRequestError

LONG_BYTES: Final = 2**20
_MOST_HELD_S: Final = 0.05  # that one decode may hold the loop
_PLAIN_S: Final = 0.7e-9  # for each byte of a long string
_VALUE_S: Final = 25e-9  # for each byte that is a bracket, a comma, a quote or a backslash
_DIGIT_S: Final = 4e-9  # for each byte that is a digit, beyond those of Base64 and of text: a number of them is checked
_USUAL_DIGITS: Final = 0.2
_SPACE_S: Final = 6e-9  # for each space beyond those of texts: between values it is copied several times
_USUAL_SPACES: Final = 0.3
_DIGITS: Final = string.digits.encode()
_PLAIN: Final = (string.ascii_letters + string.digits + " +/=_-.").encode() + bytes(range(0x80, 0x100))
_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096
_PIECE_BYTES: Final = 256 * 1024
_MOST_CHILDREN: Final = 2  # each takes about four times the body's memory
_CHANCE: Final = random.SystemRandom()  # request ids give the state of the other one away
_PACKAGES: Final = str(Path(__file__).parents[2])
_CHILD: Final = (sys.executable, "-P", "-m", "gateway.bodies.child")
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")  # variables of the environment: no secret

log = structlog.get_logger(__name__)


class ChildError(Exception):
    """The child ended without an answer."""


@dataclass(slots=True)
class _Turn:
    """The lock of one key, and how many bodies hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    bodies: int = 0


class LongBodies:
    """Reads the long bodies of one process."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}
        self._children = asyncio.Semaphore(_MOST_CHILDREN)
        self._loops_turn = asyncio.Lock()  # others go first between two bodies

    async def read(self, key: str, body: bytes) -> JsonBody:
        """Reads a body of a key, by its id.

        Raises:
            BadRequestError: `read_json` refuses the body.
            ChildError: it could not be read.
        """
        async with self._turn(key):
            if held_s(body) > _MOST_HELD_S:
                async with self._children:
                    return await _read_in_child(body)
            digest = await asyncio.to_thread(_digest, body)  # releases the interpreter's lock
            async with self._loops_turn:
                await asyncio.sleep(0)
                return JsonBody(read_json(body), body, digest)

    @asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(key, _Turn())
        turn.bodies += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.bodies -= 1
            if not turn.bodies:
                del self._turns[key]


def held_s(body: bytes) -> float:
    """About how long a decode holds the loop, in seconds.

    Samples decide. They are drawn by chance, so that no client can place its values between them.
    """
    starts = (_CHANCE.randrange(max(1, len(body) - _SAMPLE_BYTES)) for _ in range(_SAMPLES))
    sample = b"".join(body[start : start + _SAMPLE_BYTES] for start in starts)
    size = max(1, len(sample))
    values = len(sample.translate(None, _PLAIN)) / size
    digits = (len(sample) - len(sample.translate(None, _DIGITS))) / size
    unusual = _DIGIT_S * max(0.0, digits - _USUAL_DIGITS)
    unusual += _SPACE_S * max(0.0, sample.count(b" ") / size - _USUAL_SPACES)
    return len(body) * (_PLAIN_S + _VALUE_S * values + unusual)


def _digest(body: bytes) -> bytes:
    return sha256(body).digest()


async def _read_in_child(body: bytes) -> JsonBody:
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ} | {"PYTHONPATH": _PACKAGES}
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*_CHILD, stdin=pipe, stdout=pipe, env=environment, limit=_PIECE_BYTES)
    try:
        line, parts = await _exchanged(child, body)
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode != 0 or not line:
        log.error("a long body was not read: its child ended", exit_code=child.returncode, size=len(body))
        raise ChildError
    answer = msgspec.json.decode(line, type=ChildAnswer)
    if answer.parameters is None:
        raise BadRequestError(answer.error, answer.param)
    return JsonBody(answer.parameters, b"", answer.digest, answer.prompt_bytes, answer.values, parts)


async def _exchanged(child: asyncio.subprocess.Process, body: bytes) -> tuple[bytes, tuple[bytes, ...]]:
    """The first line of a child's answer, and the pieces that follow.

    The body goes and comes in pieces, since to copy all of it at once would hold the loop.
    """
    if child.stdin is None or child.stdout is None:
        raise AssertionError("the child has pipes")
    view = memoryview(body)
    with suppress(ConnectionError):  # it ended: its exit code is the answer
        for start in range(0, len(body), _PIECE_BYTES):
            child.stdin.write(view[start : start + _PIECE_BYTES])
            await child.stdin.drain()
    child.stdin.close()
    line = await child.stdout.readline()
    parts = []
    while piece := await child.stdout.read(_PIECE_BYTES):
        parts.append(piece)
    return line.rstrip(), tuple(parts)
