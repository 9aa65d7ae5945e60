"""Answers a shell that requests live names: within a second, and without messages on errors."""

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from cli.completion.offers import CONTEXTS, GPUS, Wanted, offered
from cli.completion.shells import answer, typed

DEADLINE_S: Final = 1.0
_MOST: Final = 1000  # names of one list: the longest page of the API
_SAFE: Final = re.compile(r"[A-Za-z0-9._:/@+-]+")  # characters without a meaning for shells and terminals


def complete(environ: Mapping[str, str]) -> int | None:
    """Prints the words that fit; returns the exit code. None: typer shall answer."""
    try:
        request = typed(environ)
        line = None if request is None else offered(request.words, request.incomplete)
    except (KeyError, ValueError):
        return None
    if request is None or line is None or line.wanted is None:
        return None
    words = [word for word in line.wanted.words if word.startswith(request.incomplete)]
    late = threading.Timer(DEADLINE_S, _end, answer(environ, request, words))  # name servers keep no deadline of ours
    late.daemon = True
    late.start()
    with suppress(Exception):  # a message would appear within the line that the user types
        words += _live_names(line.wanted, line.options, request.incomplete, environ)
    late.cancel()
    text, code = answer(environ, request, words)
    _print(text)
    return code


def _print(text: str) -> None:
    if text:
        print(text, flush=True)


def _end(text: str, code: int) -> None:
    """Prints, and ends the process although another thread still waits."""
    try:
        _print(text)
    finally:
        os._exit(code)


def _live_names(wanted: Wanted, options: Mapping[str, str], incomplete: str, environ: Mapping[str, str]) -> list[str]:
    names = [name for of in wanted.lists for name in _names(of, wanted.worker, options, environ)]
    words = {wanted.before + name for name in names if _SAFE.fullmatch(name)}
    return sorted(word for word in words if word.startswith(incomplete))


def _names(of: str, worker: str, options: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    if of == CONTEXTS:
        from cli.transport.contexts import contexts_file, read_contexts  # noqa: PLC0415 - completion is quick

        return list(read_contexts(contexts_file(environ)).by_name)
    return [name for raw in _read(of, worker, options, environ) for name in _names_of(of, raw, worker)]


def _names_of(of: str, raw: Mapping[str, Any], worker: str) -> Iterator[str]:
    """A GPU has two: `worker:index` (the index alone after its worker), and the first block of its UUID."""
    if of != GPUS:
        yield str(raw["id"] if of in ("keys", "tokens") else raw["name"])
        return
    from cli.text.formatting import short_gpu  # noqa: PLC0415 - completion is quick

    status = raw["status"]
    if status.get("parent") is None and status.get("present", True):
        yield str(status["index"]) if worker else f"{status['worker']}:{status['index']}"
    yield short_gpu(str(raw["name"]))


def _read(of: str, worker: str, options: Mapping[str, str], environ: Mapping[str, str]) -> list[dict[str, Any]]:
    from cli.transport.client import connected  # noqa: PLC0415 - as above
    from cli.transport.connection import find_connection  # noqa: PLC0415 - as above
    from cli.transport.paths import path_of  # noqa: PLC0415 - completion is quick

    connection = find_connection(
        options.get("--url"), options.get("--api-key"), context=options.get("--context"), environ=environ
    )
    with connected(connection) as api:
        return api.items(path_of(of), limit=_MOST, worker=worker or None)
