"""Addresses and keys of controllers by name, in a file that only its user may read."""

import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cli.errors import CliError, NotFoundError, UsageError
from cli.transport.near_names import did_you_mean, near

_FILE: Final = "contexts.json"
_OTHERS: Final = 0o077
_MOST_BYTES: Final = 1024 * 1024
_LOCK_S: Final = 5.0
_LOCK_PERIOD_S: Final = 0.05
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Context:
    """Base URL of a controller without a trailing slash, a key of its API, and the authority of its certificate."""

    url: str
    key: str = field(repr=False)
    ca: Path | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts. `in_use` is the name of the context in use."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    in_use: str | None = None

    def get(self, name: str) -> Context:
        """Raises `NotFoundError` where no context has this name."""
        if name not in self.by_name:
            meant = did_you_mean(near(name, self.by_name)) or "; list them: gpuward context list"
            raise NotFoundError(f"context {name!r} does not exist{meant}")
        return self.by_name[name]

    def current(self) -> Context | None:
        """The context in use. Raises `NotFoundError` where no context has its name."""
        return None if self.in_use is None else self.get(self.in_use)

    def having(self, name: str, context: Context) -> "Contexts":
        """A copy with this context. Raises `UsageError` for an invalid name."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a valid name; write up to 63 letters, digits, '-', '_' and '.'")
        return Contexts({**self.by_name, name: context}, self.in_use)

    def without(self, name: str) -> "Contexts":
        """A copy without this context, which is then not in use. Raises `NotFoundError` where it does not exist."""
        self.get(name)
        kept = {other: context for other, context in self.by_name.items() if other != name}
        return Contexts(kept, None if self.in_use == name else self.in_use)

    def using(self, name: str | None) -> "Contexts":
        """A copy with this context in use, or with no context in use. Raises `NotFoundError` as `get` does."""
        if name is not None:
            self.get(name)
        return Contexts(self.by_name, name)


def contexts_file(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME")
    if base and Path(base).is_absolute():  # its specification says to ignore relative paths
        return Path(base) / "gpuward" / _FILE
    return Path(environ["HOME"] if environ.get("HOME") else "~").expanduser() / ".config" / "gpuward" / _FILE


def read_contexts(file: Path) -> Contexts:
    """The contexts of a file, which need not exist. Raises `CliError` if others may read it, or it cannot be read."""
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            if stat.S_IMODE(status.st_mode) & _OTHERS:
                raise CliError(f"{file} holds keys, and others may read it; run: chmod 600 {file}")
            if status.st_uid not in (os.geteuid(), 0):
                raise CliError(f"{file} holds keys, and another user owns it; remove it, or take it over")
            content = opened.read(_MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise CliError(f"{file} cannot be read: {error.strerror}") from error
    try:
        return _contexts_of(json.loads(content))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ):  # the message has no part of the text, which may hold keys
        raise CliError(f"{file} is not valid; correct it, or remove it and add its contexts again") from None


def _contexts_of(data: Any) -> Contexts:
    by_name = {
        str(name): Context(str(raw["url"]), str(raw["key"]), Path(raw["ca"]) if raw.get("ca") else None)
        for name, raw in data["contexts"].items()
    }
    return Contexts(by_name, None if data.get("in_use") is None else str(data["in_use"]))


@contextmanager
def changing(file: Path) -> Iterator[list[Contexts]]:
    """Yields a list with the contexts; those in the list at the end are written, unless the block raises.

    Raises:
        CliError: the file cannot be read or written, or another call locks it for longer than `_LOCK_S`.
    """
    try:
        folder = file.resolve().parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _not_written(file, error) from error
    try:
        _lock(descriptor, file)
        before = read_contexts(file)
        holder = [before]
        yield holder
        if holder[0] != before:
            _write(file.resolve(), holder[0])
            os.fsync(descriptor)
    except OSError as error:
        raise _not_written(file, error) from error
    finally:
        os.close(descriptor)


def _lock(descriptor: int, file: Path) -> None:
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise CliError(f"another call changes {file} for {_LOCK_S:g} s already; try again") from None
            time.sleep(_LOCK_PERIOD_S)
        else:
            return


def _write(file: Path, contexts: Contexts) -> None:
    """Writes a draft and renames it, so that a crash leaves the old or the new file."""
    kept = {
        name: {"url": context.url, "key": context.key, **({} if context.ca is None else {"ca": str(context.ca)})}
        for name, context in contexts.by_name.items()
    }
    text = json.dumps({"in_use": contexts.in_use, "contexts": kept}, indent=2) + "\n"
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as opened:
            opened.write(text.encode())
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _not_written(file: Path, error: OSError) -> CliError:
    return CliError(f"{file} cannot be written: {error.strerror}")
