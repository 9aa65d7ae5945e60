"""Answers a shell that asks for live names: within a second, and silent whatever goes wrong."""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from cli.completion.live import fixed, live_names
from cli.completion.offers import offered
from cli.completion.shells import answer, typed

DEADLINE_S: Final = 1.0


def complete(environ: Mapping[str, str]) -> int | None:
    """Prints what fits; returns the exit code. None: what is asked for is not known here, so typer shall answer."""
    try:
        asked = typed(environ)
        line = None if asked is None else offered(asked.words, asked.incomplete)
    except (KeyError, ValueError):
        return None
    if asked is None or line is None or line.wanted is None:
        return None
    words = fixed(line.wanted, asked.incomplete)
    late = threading.Timer(DEADLINE_S, _end, answer(environ, asked, words))  # name servers keep no deadline of ours
    late.daemon = True
    late.start()
    with suppress(Exception):  # a message would stand in the middle of what is typed
        words += live_names(line.wanted, line.options, asked.incomplete, environ)
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
