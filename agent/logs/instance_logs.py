"""Streams an instance's log: its last lines, and new output while the process lives."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

import orjson

from agent.engine_proxy.answers import error_body
from agent.logs.plain_log import PlainLog
from agent.logs.redaction import Redactor
from agent.logs.timed_log import LINES_MAX, TimedLog
from agent.processes.folders import InstanceFolders, LogFile
from agent.state.journal import Journal
from agent.state.process_records import ProcessKey
from http1.protocol.streamed_answer import StreamedAnswer
from schemas.wire import TIMED_LOG

TAIL_DEFAULT: Final = 200
TAIL_MAX: Final = 10_000
_CHUNK_BYTES: Final = 65_536
_POLL_S: Final = 0.2
_MOST_FIELDS: Final = 20


class LogReader:
    """Answers `/logs/{instance}?tail=N&follow=1&previous=1&rank=R&epoch=E`; `times=1` adds each line's time."""

    def __init__(self, journal: Journal, folders: InstanceFolders) -> None:
        self._journal = journal
        self._folders = folders

    async def answer(self, response: StreamedAnswer, instance: str, query: str) -> None:
        """`tail` is a number of lines; `follow` ends when the process has ended and all is sent."""
        params = {name: values[-1] for name, values in parse_qs(query, max_num_fields=_MOST_FIELDS).items()}
        try:
            timed, since_ms = _flag(params, "times"), _number(params, "since_ms", None, None)
            tail = (
                _number(params, "tail", None, LINES_MAX) if timed else _number(params, "tail", TAIL_DEFAULT, TAIL_MAX)
            )
            rank, epoch = _number(params, "rank", None, None), _number(params, "epoch", None, None)
        except ValueError as error:
            await _refuse(response, 400, "bad_request", str(error))
            return
        chosen = self._choose(instance, previous=_flag(params, "previous"), rank=rank, epoch=epoch)
        if chosen is None:
            await _refuse(response, 404, "not_found", f"no such log of instance {instance} on this host")
            return
        key = ProcessKey(instance, chosen.epoch, chosen.rank)
        try:
            redactor = await asyncio.to_thread(self._folders.redactor, key)
        except (OSError, ValueError) as error:
            await _refuse(response, 500, "internal", f"what the log must not show cannot be read: {error}")
            return
        if timed:
            if tail is None:
                tail = TAIL_DEFAULT if since_ms is None else LINES_MAX
            await self._answer_timed(response, key, since_ms, tail, redactor, follow=_flag(params, "follow"))
            return
        index = await asyncio.to_thread(self._folders.index, key)
        reader = PlainLog(chosen.path, index, redactor)
        text = await asyncio.to_thread(reader.tail, tail or 0)
        response.start(200, [(b"content-type", b"text/plain; charset=utf-8")])
        await _write(response, text)
        if _flag(params, "follow"):
            await self._follow(response, key, reader)
        await _write(response, reader.rest())

    def _choose(self, instance: str, *, previous: bool, rank: int | None, epoch: int | None = None) -> LogFile | None:
        if instance in ("", ".", "..") or "/" in instance or "\x00" in instance:
            return None
        logs = [log for log in self._folders.logs(instance) if rank is None or log.rank == rank]
        if epoch is not None:
            return next((log for log in logs if log.epoch == epoch), None)
        newest = logs[0].epoch if logs else None
        lives = any((record.instance, record.epoch) == (instance, newest) for record in self._journal.live())
        if previous and newest is not None and not lives:
            return logs[0]  # between two starts the last start is the previous one
        logs = [log for log in logs if (log.epoch != newest) == previous]
        return logs[0] if logs else None

    async def _answer_timed(
        self,
        response: StreamedAnswer,
        key: ProcessKey,
        since_ms: int | None,
        tail: int,
        redactor: Redactor,
        *,
        follow: bool,
    ) -> None:
        index = await asyncio.to_thread(self._folders.index, key)
        reader = TimedLog(self._folders.log(key), index, redactor)
        await asyncio.to_thread(reader.begin, since_ms=since_ms, tail=tail)
        response.start(200, [(b"content-type", TIMED_LOG.encode())])
        caught_up = lived = False
        while True:
            ended = self._ended(key)  # checked before the read, which then includes the last output
            while (frames := await asyncio.to_thread(reader.read, last=ended)) is not None:
                await _write(response, b"".join(frames))
            if not caught_up:
                await _write(response, b"C\n")
                caught_up = True
            if ended:
                await _write(response, self._end_frame(key, lived=lived))
            if ended or not follow:
                return
            lived = True
            await asyncio.sleep(_POLL_S)

    def _ended(self, key: ProcessKey) -> bool:
        record = self._journal.processes.get(key)
        return record is None or not record.alive

    def _end_frame(self, key: ProcessKey, *, lived: bool) -> bytes:
        """How the process ended; `at_ms` if it ended during this call."""
        record = self._journal.processes.get(key)
        end = {
            "reason": record.reason if record else None,
            "exit_code": record.exit_code if record else None,
            "message": record.message if record else "",
            "at_ms": int(time.time() * 1000) if lived else None,
        }
        return b"E%b\n" % orjson.dumps(end)

    async def _follow(self, response: StreamedAnswer, key: ProcessKey, reader: PlainLog) -> None:
        while True:
            ended = self._ended(key)  # checked before the read, which then includes the last output
            while (text := await asyncio.to_thread(reader.read)) is not None:
                await _write(response, text)
            if ended:
                return
            await asyncio.sleep(_POLL_S)


def _flag(params: Mapping[str, str], name: str) -> bool:
    return params.get(name, "").lower() in ("1", "true", "yes")


def _number(params: Mapping[str, str], name: str, default: int | None, maximum: int | None) -> int | None:
    text = params.get(name)
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
