"""Streams an instance's log: its last lines, and what is added while the process lives."""

import asyncio
from pathlib import Path
from typing import Final

from aiohttp import web

from agent.journal import Journal
from agent.process_records import ProcessKey
from agent.processes.folders import InstanceFolders, LogFile

TAIL_DEFAULT: Final = 200
TAIL_MAX: Final = 10_000
_TAIL_MAX_BYTES: Final = 4 * 2**20
_CHUNK_BYTES: Final = 65_536
_POLL_S: Final = 0.2
_WRITE_LIMIT_S: Final = 60.0


class LogReader:
    """Handles `/logs/{instance}?tail=N&follow=1&previous=1&rank=R`."""

    def __init__(self, journal: Journal, folders: InstanceFolders) -> None:
        self._journal = journal
        self._folders = folders

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Streams the log. `tail` is a number of lines; `follow` ends when the process has ended and all is sent."""
        instance = request.match_info["instance"]
        try:
            tail = _number(request, "tail", TAIL_DEFAULT, TAIL_MAX)
            rank = _number(request, "rank", None, None)
        except ValueError as error:
            return web.json_response(
                {"error": {"code": "bad_request", "message": str(error), "details": {}}}, status=400
            )
        chosen = self._choose(instance, previous=_flag(request, "previous"), rank=rank)
        if chosen is None:
            message = f"no such log of instance {instance} on this host"
            return web.json_response({"error": {"code": "not_found", "message": message, "details": {}}}, status=404)
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        text, offset = await asyncio.to_thread(read_tail, chosen.path, tail or 0)
        await _write(response, text)
        if _flag(request, "follow"):
            await self._follow(response, ProcessKey(instance, chosen.epoch, chosen.rank), chosen.path, offset)
        await response.write_eof()
        return response

    def _choose(self, instance: str, *, previous: bool, rank: int | None) -> LogFile | None:
        if instance in ("", ".", "..") or "/" in instance or "\x00" in instance:
            return None
        logs = [log for log in self._folders.logs(instance) if rank is None or log.rank == rank]
        newest = logs[0].epoch if logs else None
        logs = [log for log in logs if (log.epoch != newest) == previous]
        return logs[0] if logs else None

    async def _follow(self, response: web.StreamResponse, key: ProcessKey, path: Path, offset: int) -> None:
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


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in ("1", "true", "yes")


def _number(request: web.Request, name: str, default: int | None, maximum: int | None) -> int | None:
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isdigit():
        raise ValueError(f"{name}: must be a number such as 100, got {text!r}")
    return int(text) if maximum is None else min(int(text), maximum)


async def _write(response: web.StreamResponse, text: bytes) -> None:
    for start in range(0, len(text), _CHUNK_BYTES):
        async with asyncio.timeout(_WRITE_LIMIT_S):
            await response.write(text[start : start + _CHUNK_BYTES])
