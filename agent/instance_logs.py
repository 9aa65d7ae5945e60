"""Streams an instance's log: its last lines, and what is added while the process lives."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from agent.journal import Journal
from agent.process_records import ProcessKey
from agent.processes.folders import InstanceFolders, LogFile
from agent.proxy_answers import error_body
from http1.streamed_answer import StreamedAnswer

TAIL_DEFAULT: Final = 200
TAIL_MAX: Final = 10_000
_TAIL_MAX_BYTES: Final = 4 * 2**20
_CHUNK_BYTES: Final = 65_536
_POLL_S: Final = 0.2
_MOST_FIELDS: Final = 20


class LogReader:
    """Answers `/logs/{instance}?tail=N&follow=1&previous=1&rank=R`."""

    def __init__(self, journal: Journal, folders: InstanceFolders) -> None:
        self._journal = journal
        self._folders = folders

    async def answer(self, response: StreamedAnswer, instance: str, query: str) -> None:
        """Streams the log. `tail` is a number of lines; `follow` ends when the process has ended and all is sent."""
        asked = {name: values[-1] for name, values in parse_qs(query, max_num_fields=_MOST_FIELDS).items()}
        try:
            tail = _number(asked, "tail", TAIL_DEFAULT, TAIL_MAX)
            rank = _number(asked, "rank", None, None)
        except ValueError as error:
            await _refuse(response, 400, "bad_request", str(error))
            return
        chosen = self._choose(instance, previous=_flag(asked, "previous"), rank=rank)
        if chosen is None:
            await _refuse(response, 404, "not_found", f"no such log of instance {instance} on this host")
            return
        text, offset = await asyncio.to_thread(read_tail, chosen.path, tail or 0)
        response.start(200, [(b"content-type", b"text/plain; charset=utf-8")])
        await _write(response, text)
        if _flag(asked, "follow"):
            await self._follow(response, ProcessKey(instance, chosen.epoch, chosen.rank), chosen.path, offset)

    def _choose(self, instance: str, *, previous: bool, rank: int | None) -> LogFile | None:
        if instance in ("", ".", "..") or "/" in instance or "\x00" in instance:
            return None
        logs = [log for log in self._folders.logs(instance) if rank is None or log.rank == rank]
        newest = logs[0].epoch if logs else None
        if previous and newest is not None and not self._lives(instance, newest):
            return logs[0]  # between two starts the one that has just ended is the previous one
        logs = [log for log in logs if (log.epoch != newest) == previous]
        return logs[0] if logs else None

    def _lives(self, instance: str, epoch: int) -> bool:
        """Whether any process of that start lives."""
        records = self._journal.processes.values()
        return any(one.alive for one in records if (one.instance, one.epoch) == (instance, epoch))

    async def _follow(self, response: StreamedAnswer, key: ProcessKey, path: Path, offset: int) -> None:
        while True:
            record = self._journal.processes.get(key)
            ended = record is None or not record.alive  # checked before the read, which then includes the last output
            while True:
                text, offset = await asyncio.to_thread(read_from, path, offset)
                if not text:
                    break
                await _write(response, text)
            if ended:
                return
            await asyncio.sleep(_POLL_S)


def read_tail(path: Path, lines: int) -> tuple[bytes, int]:
    """The last lines, of the rotated log too, and the offset from which to read on. Blocks."""
    text, offset = _read_end(path)
    if text.count(b"\n") < lines:
        rotated, _ = _read_end(path.with_suffix(".log.1"))
        text = rotated + text
    kept = text.splitlines(keepends=True)
    return b"".join(kept[-lines:] if lines else []), offset


def read_from(path: Path, offset: int) -> tuple[bytes, int]:
    """The next chunk after an offset, and the offset after it; from the start if the log was rotated. Blocks."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = offset if offset <= size else 0
            file.seek(start)
            text = file.read(_CHUNK_BYTES)
    except FileNotFoundError:
        return b"", offset
    return text, start + len(text)


def _read_end(path: Path) -> tuple[bytes, int]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_MAX_BYTES))
            text = file.read(_TAIL_MAX_BYTES)
            return text, file.tell()
    except FileNotFoundError:
        return b"", 0


def _flag(asked: Mapping[str, str], name: str) -> bool:
    return asked.get(name, "").lower() in ("1", "true", "yes")


def _number(asked: Mapping[str, str], name: str, default: int | None, maximum: int | None) -> int | None:
    text = asked.get(name)
    if text is None:
        return default
    if not text.isdigit():
        raise ValueError(f"{name}: must be a number such as 100, got {text!r}")
    return int(text) if maximum is None else min(int(text), maximum)


async def _refuse(response: StreamedAnswer, status: int, code: str, message: str) -> None:
    response.start(status, [(b"content-type", b"application/json; charset=utf-8")])
    await response.send(error_body(code, message))


async def _write(response: StreamedAnswer, text: bytes) -> None:
    for start in range(0, len(text), _CHUNK_BYTES):
        await response.send(text[start : start + _CHUNK_BYTES])
