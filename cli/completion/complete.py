"""Answers a shell that requests live names: within a second, and silent whatever fails."""

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from cli.completion.offers import CONTEXTS, GPUS, Wanted, offered
from cli.completion.shells import answer, typed

DEADLINE_S: Final = 1.0
_MOST: Final = 1000  # names of one list, its first ones: one page, as long as the API lets it be
_SAFE: Final = re.compile(r"[A-Za-z0-9._:/@+-]+")  # a shell obeys none of them, and terminals neither


def complete(environ: Mapping[str, str]) -> int | None:
    """Prints what fits; returns the exit code. None: typer shall answer."""
    try:
        asked = typed(environ)
        line = None if asked is None else offered(asked.words, asked.incomplete)
    except (KeyError, ValueError):
        return None
    if asked is None or line is None or line.wanted is None:
        return None
    words = [one for one in line.wanted.words if one.startswith(asked.incomplete)]
    late = threading.Timer(DEADLINE_S, _end, answer(environ, asked, words))  # name servers keep no deadline of ours
    late.daemon = True
    late.start()
    with suppress(Exception):  # a message would stand in the middle of what is typed
        words += _live_names(line.wanted, line.options, asked.incomplete, environ)
    late.cancel()
    text, code = answer(environ, asked, words)
    _print(text)
    return code


def _print(text: str) -> None:
    if text:
        print(text, flush=True)


def _end(text: str, code: int) -> None:
    """Ends the process with what is known, while another thread still waits."""
    try:
        _print(text)
    finally:
        os._exit(code)


def _live_names(wanted: Wanted, options: Mapping[str, str], incomplete: str, environ: Mapping[str, str]) -> list[str]:
    """The names that are offered, in order.

    Raises:
        CliError: no controller answers, or it refuses.
    """
    names = [name for one in wanted.lists for name in _names(one, wanted.worker, options, environ)]
    found = {wanted.before + name for name in names if _SAFE.fullmatch(name)}
    return sorted(one for one in found if one.startswith(incomplete))


def _names(of: str, worker: str, options: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    if of == CONTEXTS:
        from cli.transport.contexts import contexts_file, read_contexts  # noqa: PLC0415 - completion is quick

        return list(read_contexts(contexts_file(environ)).by_name)
    return [name for raw in _read(of, worker, options, environ) for name in _names_of(of, raw, worker)]


def _names_of(of: str, raw: Mapping[str, Any], worker: str) -> Iterator[str]:
    """As tables print it: a GPU by `worker:index`, or by its index beside its worker, and by the begin of its UUID."""
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
