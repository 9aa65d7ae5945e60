"""Items of logs as text for people, or as JSON lines. Pure."""

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from controller.api.merged_logs.frames import End, Item, Line, Note, moment
from controller.api.merged_logs.merge import Told
from controller.store.views.logs import InstanceLog

Write = Callable[[Iterable[Told]], bytes]


def as_json(told: Iterable[Told]) -> bytes:
    """One object a line: a line of a log, `end` of a process, or a `note` of ours."""
    return b"".join(orjson.dumps(as_object(*one)) + b"\n" for one in told)


def as_object(log: InstanceLog, item: Item) -> dict[str, Any]:
    """An item of a log as the API tells it."""
    found: dict[str, Any] = {"instance": log.instance, "rank": log.rank, "epoch": log.epoch}
    if isinstance(item, Line):
        found["at"] = moment(item.at_ms) if item.at_ms is not None else None
        if not item.exact:
            found["exact"] = False
        found["position"] = item.position
        found["line"] = item.text.decode("utf-8", "replace")
    elif isinstance(item, End):
        at = moment(item.at_ms) if item.at_ms is not None else None
        end = {"reason": item.reason, "exit_code": item.exit_code, "message": item.message, "at": at}
        found["end"] = {**end, "words": item.words}
    elif isinstance(item, Note):
        found["note"] = {"code": item.code, "message": item.message}
    return found


def as_text(*, names: bool, ranks: bool, timestamps: bool) -> Write:
    """Lines as an engine wrote them, after the name of the instance (and the rank) and the time, where asked."""

    def write(told: Iterable[Told]) -> bytes:
        return b"".join(_line(one, names=names, ranks=ranks, timestamps=timestamps) for one in told)

    return write


def _line(told: Told, *, names: bool, ranks: bool, timestamps: bool) -> bytes:
    log, item = told
    prefix = f"[{log.instance}{f' rank {log.rank}' if ranks else ''}] " if names else ""
    if not isinstance(item, Line):
        words = item.message if isinstance(item, Note) else f"the process has {item.words}"  # type: ignore[union-attr]
        return f"{prefix}gpuward: {words}\n".encode()
    if timestamps:
        prefix += f"{moment(item.at_ms) if item.at_ms is not None else '-'} "
    return prefix.encode() + item.text + b"\n"
