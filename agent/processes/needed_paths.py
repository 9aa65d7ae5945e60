"""Whether an engine's account gets to what the engine needs of the host, before the engine starts.

An engine that does not prints an error of its own, often a long one that names neither the account nor the folder.
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
# Engines read these of a model's folder. It may hold other files, which need not be readable.
_NEEDED: Final = re.compile(
    r".*(config\.json|\.index\.json|\.model|tokenizer\.json)|vocab\.(json|txt)|merges\.txt|chat_template\.(json|jinja)"
    r"|(special_tokens_map|added_tokens|modules|params|tekken)\.json"
)
_WEIGHTS: Final = re.compile(r".*\.safetensors")
_OTHER_WEIGHTS: Final = re.compile(r".*\.gguf|.*model(-\d+-of-\d+)?\.bin")  # read where there are no safetensors
_MOST_ASKED: Final = 20  # of these, which their mode closes: the kernel is asked by a process each
_LOOKS_AT_ONCE: Final = 4
_LOOK_LIMIT_S: Final = 10.0  # a file system of the network may hang
_TEST: Final = "/usr/bin/test"
_TEST_LIMIT_S: Final = 5.0


class PathLooks:
    """Looks in threads of their own, a few at once: a file system that hangs keeps its thread until it answers."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(_LOOKS_AT_ONCE)

    async def why_unreadable(
        self, account: Account, *, reads: Iterable[Path], enters: Iterable[Path] = (), mounted: bool = False
    ) -> str:
        """As the function; empty also where the file system does not answer in time: the engine finds out."""
        if not self._free.acquire(blocking=False):
            return ""

        def look() -> str:
            try:
                return why_unreadable(account, reads=reads, enters=enters, mounted=mounted)
            finally:
                self._free.release()

        try:
            async with asyncio.timeout(_LOOK_LIMIT_S):
                return await in_background(look)
        except TimeoutError:
            return ""


def why_unreadable(
    account: Account, *, reads: Iterable[Path], enters: Iterable[Path] = (), mounted: bool = False
) -> str:
    """The first place that the account does not get to, with what would help; empty: it gets everywhere.

    What does not exist counts for nothing here: the engine names it better. Blocks: call it in a thread.

    Args:
        account: as which the engine runs.
        reads: folders and files that the engine reads.
        enters: folders that it works in.
        mounted: they are bound into a container, so the folders above them do not matter.
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
    """The first folder on the way to it that the account may not enter, by its name and by its links' targets.

    `alone`: only the path itself counts.
    """
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
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
    """What the account may not read: the path itself, or a file in it; unless mounted, also behind its links."""
    try:
        if not account.reads(path.stat()) and _is_refused(account, path, "-r", alone=mounted):
            yield path
        with os.scandir(path) as found:
            files = _needed([entry.name for entry in islice(found, _MOST_ENTRIES)])
    except OSError:  # a file, or it changed since
        return
    asked, entered = 0, set[str]()  # a cache's links all go to one folder
    for file in (path / name for name in files[:_MOST_FILES]):
        if file.is_symlink():
            if mounted:  # it may go elsewhere in a container
                continue
            target = os.path.dirname(os.path.realpath(file))  # noqa: PTH120 - Path's own throws at links in a circle
            if target not in entered and (stopped := _first_stop(account, file)) is not None:
                yield stopped
            entered.add(target)
        try:
            status = file.stat()
        except OSError:  # a broken link
            continue
        if stat.S_ISREG(status.st_mode) and not account.reads(status) and asked < _MOST_ASKED:
            asked += 1
            if _is_refused(account, file, "-r", alone=mounted):
                yield file


def _needed(names: Sequence[str]) -> list[str]:
    """The files that engines read of those in a model's folder."""
    weights = _WEIGHTS if any(map(_WEIGHTS.fullmatch, names)) else _OTHER_WEIGHTS
    return [name for name in names if _NEEDED.fullmatch(name) or weights.fullmatch(name)]


def _is_refused(account: Account, path: Path, question: str, *, alone: bool = False) -> bool:
    """Asks the kernel, as that account: the mode alone leaves out access control lists.

    `alone`: about the path itself, not about the way to it.
    """
    own = account.uid == os.geteuid()
    try:
        with ExitStack() as stack:
            opened: int = subprocess.DEVNULL
            if alone:  # a process enters its own open files without a way
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
        return False  # unknown: the engine finds out
    return done.returncode == 1
