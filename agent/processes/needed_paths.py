"""Checks before a start that an engine's account can reach the engine's files.

An engine's own error is often long and names neither the account nor the folder.
"""

import asyncio
import os
import re
import stat
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Final

from agent.processes.account import Account
from agent.tasks import in_background
from schemas.exit_causes import Cause

_MOST_ENTRIES: Final = 20_000  # of a folder, by name alone
_MOST_FILES: Final = 1_000  # of these, which an engine reads
# Engines read these files of a model's folder. Other files need not be readable.
_NEEDED: Final = re.compile(
    r".*(config\.json|\.index\.json|\.model|tokenizer\.json)|vocab\.(json|txt)|merges\.txt|chat_template\.(json|jinja)"
    r"|(special_tokens_map|added_tokens|modules|params|tekken)\.json"
)
_WEIGHTS: Final = re.compile(r".*\.safetensors")
_OTHER_WEIGHTS: Final = re.compile(r".*\.gguf|.*model(-\d+-of-\d+)?\.bin")  # read if a model has no safetensors
_MOST_TESTED: Final = 20  # of these, which their mode closes: a process each tests them
_CHECKS_AT_ONCE: Final = 4
_CHECK_LIMIT_S: Final = 10.0  # a file system of the network may hang
_TEST: Final = "/usr/bin/test"
_TEST_LIMIT_S: Final = 5.0


class PathChecks:
    """Checks in a few threads: a file system that hangs keeps its thread until it answers."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(_CHECKS_AT_ONCE)

    async def why_unreadable(
        self, account: Account, *, reads: Iterable[Path], enters: Iterable[Path] = (), mounted: bool = False
    ) -> str:
        """As the function; empty also if the file system does not answer in time."""
        if not self._free.acquire(blocking=False):
            return ""

        def check() -> str:
            try:
                return why_unreadable(account, reads=reads, enters=enters, mounted=mounted)
            finally:
                self._free.release()

        try:
            async with asyncio.timeout(_CHECK_LIMIT_S):
                return await in_background(check)
        except TimeoutError:
            return ""


def why_unreadable(
    account: Account, *, reads: Iterable[Path], enters: Iterable[Path] = (), mounted: bool = False
) -> str:
    """The first unreachable path with a remedy; empty if all are reachable. Blocks.

    Missing paths are ignored: the engine's own error names them. `reads` are folders and files, `enters` are working
    folders. `mounted`: they are mounted into a container, so their parents do not matter.
    """
    if account.uid == 0:
        return ""
    for path in enters:
        if (stopped := _first_stop(account, path)) is not None:
            return _message(account, "enter", stopped, "o+x")
    for path in reads:
        if (stopped := _first_stop(account, path, alone=mounted)) is not None:
            return _message(account, "enter", stopped, "o+rX" if stopped in (path, path.resolve()) else "o+x")
        if (unread := next(_unread(account, path, mounted=mounted), None)) is not None:
            return _message(account, "read", unread, "o+rX" if unread.is_dir() else "o+r")
    return ""


def _message(account: Account, verb: str, place: Path, mode: str) -> str:
    owner = "the engine runs as uid" if account.uid != os.geteuid() else "agent and engine run as uid"
    return (
        f"{Cause.PATH_UNREADABLE}: {owner} {account.uid}, which may not {verb} {place}; "
        f"allow it on that host: chmod {mode} {place}"
    )


def _first_stop(account: Account, path: Path, *, alone: bool = False) -> Path | None:
    """The first folder on the way to a path that the account may not enter, by name and by targets of links.

    `alone`: only the path itself is checked.
    """
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a circle of links
        return None
    above = () if alone else (*reversed(path.parents), *reversed(target.parents))
    for place in dict.fromkeys((*above, target)):
        try:
            status = place.stat()
        except OSError:
            return None
        if (
            stat.S_ISDIR(status.st_mode)
            and not account.enters(status)
            and _is_refused(account, place, "-x", alone=alone)
        ):
            return place
    return None


def _unread(account: Account, path: Path, *, mounted: bool) -> Iterator[Path]:
    """Unreadable paths: the path itself, or a file in it; unless mounted, also targets of links."""
    try:
        if not account.reads(path.stat()) and _is_refused(account, path, "-r", alone=mounted):
            yield path
        with os.scandir(path) as entries:
            files = _needed([entry.name for entry in islice(entries, _MOST_ENTRIES)])
    except OSError:  # a file, or it has changed
        return
    tested, entered = 0, set[str]()  # a cache's links all lead to one folder
    for file in (path / name for name in files[:_MOST_FILES]):
        if file.is_symlink():
            if mounted:  # it may lead elsewhere in a container
                continue
            target = os.path.dirname(os.path.realpath(file))  # noqa: PTH120 - Path raises for a circle of links
            if target not in entered and (stopped := _first_stop(account, file)) is not None:
                yield stopped
            entered.add(target)
        try:
            status = file.stat()
        except OSError:  # a broken link
            continue
        if stat.S_ISREG(status.st_mode) and not account.reads(status) and tested < _MOST_TESTED:
            tested += 1
            if _is_refused(account, file, "-r", alone=mounted):
                yield file


def _needed(names: Sequence[str]) -> list[str]:
    """The files of a model's folder that engines read."""
    weights = _WEIGHTS if any(map(_WEIGHTS.fullmatch, names)) else _OTHER_WEIGHTS
    return [name for name in names if _NEEDED.fullmatch(name) or weights.fullmatch(name)]


def _is_refused(account: Account, path: Path, question: str, *, alone: bool = False) -> bool:
    """Tests a path as that account; `alone`: without its parents."""
    # By the kernel, since the mode does not show access control lists.
    own = account.uid == os.geteuid()
    try:
        with ExitStack() as stack:
            opened: int = subprocess.DEVNULL
            if alone:  # a process reaches its own open files without the parents
                opened = os.open(path, os.O_PATH)
                stack.callback(os.close, opened)
            done = subprocess.run(
                [_TEST, question, "/proc/self/fd/0" if alone else path],
                check=False,
                stdin=opened,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                timeout=_TEST_LIMIT_S,
                user=None if own else account.uid,
                group=None if own else account.gid,
                extra_groups=None if own else account.groups,
            )
    except (OSError, subprocess.SubprocessError):
        return False  # unknown: the engine will report it
    return done.returncode == 1
