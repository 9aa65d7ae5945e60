"""An open folder that resolves names beneath itself: through no link, no `..`, and not from the root. Blocks.

A hub, a peer or another account of the host may have chosen the names or created links. Each step opens a folder of the
previous one without following links. The result equals `openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`, also
on kernels and in containers that lack that call. A check of a resolved path would race with changes of its folders.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_TEXT_BYTES: Final = 2**24
_MOST_PARTS: Final = 64  # of a name; each takes some of the interpreter's stack in a walk


def parts_of(name: str) -> list[str]:
    """The parts of a relative path with slashes.

    Raises:
        ValueError: the path is absolute, has an empty part, `.`, `..` or NUL, or too many parts.
    """
    parts = name.split("/", _MOST_PARTS)
    if len(parts) > _MOST_PARTS:
        raise ValueError(f"{name[:80]!r}...: has more than {_MOST_PARTS} parts")
    if {"", ".", ".."} & set(parts) or "\0" in name:
        raise ValueError(f"{name!r}: names a place outside its folder")
    return parts


def is_beneath(name: str) -> bool:
    """Whether `parts_of` accepts the name."""
    try:
        return bool(parts_of(name))
    except ValueError:
        return False


class OpenFolder:
    """An open folder. Names are relative to it, with slashes.

    Each method raises OSError if the system refuses or a link is in the way, and ValueError as `parts_of`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def at(cls, path: Path) -> Self:
        """The folder at an administrator's path, whose links are followed."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def folder(self, name: str, *, make: int | None = None) -> "OpenFolder":
        """Opens a folder. `make`: creates missing folders with this mode."""
        opened = OpenFolder(os.dup(self.fd))
        try:
            for part in parts_of(name):
                made = make is not None and _made(part, make, opened.fd)
                inner = OpenFolder(_open_step(part, opened.fd))
                if made and make is not None:
                    os.fchmod(inner.fd, make)  # independent of the umask
                opened.close()
                opened = inner
        except BaseException:
            opened.close()
            raise
        return opened

    def open(self, name: str, flags: int, mode: int = 0o644) -> int:
        """Opens a regular file; returns the descriptor."""
        with self._parent(name) as (parent, last):
            # Without O_NONBLOCK a pipe in the file's place would block for ever.
            fd = os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "is not a regular file", name)
        return fd

    def read_text(self, name: str) -> str:
        """Reads a file of at most 16 MiB."""
        with os.fdopen(self.open(name, os.O_RDONLY), "rb") as file:
            content = file.read(_MOST_TEXT_BYTES + 1)
        if len(content) > _MOST_TEXT_BYTES:
            raise OSError(errno.EFBIG, "is too large", name)
        return content.decode()

    def replace_text(self, name: str, text: str, mode: int = 0o644) -> None:
        """Replaces a file atomically, or what has its name, such as a link."""
        with self._parent(name) as (parent, last):
            new = f".{last}.lock"  # never the name of a branch or tag in Git
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(new, flags, mode, dir_fd=parent), "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(new, last, src_dir_fd=parent, dst_dir_fd=parent)

    def link(self, name: str, target: str) -> None:
        """Creates a symbolic link, in place of what has its name unless that is a folder or the same link."""
        with self._parent(name) as (parent, last):
            with suppress(OSError):
                if os.readlink(last, dir_fd=parent) == target:
                    return
            with suppress(FileNotFoundError):
                os.unlink(last, dir_fd=parent)
            os.symlink(target, last, dir_fd=parent)

    def rename(self, name: str, to: str) -> None:
        with self._parent(name) as (parent, last), self._parent(to) as (onto, new):
            os.replace(last, new, src_dir_fd=parent, dst_dir_fd=onto)

    def status(self, name: str) -> os.stat_result:
        """The status of a name; of links their own."""
        with self._parent(name) as (parent, last):
            return os.stat(last, dir_fd=parent, follow_symlinks=False)

    def touch(self, name: str, now_s: float) -> None:
        """Sets its times, in seconds since 1970; to now if another account may do only that."""
        with self._parent(name) as (parent, last):
            try:
                os.utime(last, (now_s, now_s), dir_fd=parent, follow_symlinks=False)
            except PermissionError:  # only its owner, or CAP_FOWNER, may choose the time
                os.utime(last, dir_fd=parent, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        """Removes a file or link, if it exists."""
        with suppress(FileNotFoundError), self._parent(name) as (parent, last):
            os.unlink(last, dir_fd=parent)

    def remove_tree(self, name: str) -> None:
        """Removes a folder and its content as far as possible, without following links."""
        with suppress(OSError), not_too_deep(), self._parent(name) as (parent, last):
            shutil.rmtree(last, ignore_errors=True, dir_fd=parent)

    def entries(self) -> dict[str, os.stat_result]:
        """The status of each entry of the folder; of links their own."""
        statuses = {}
        with os.scandir(self.fd) as entries:
            for entry in entries:
                with suppress(OSError):
                    statuses[entry.name] = entry.stat(follow_symlinks=False)
        return statuses

    def links(self) -> Iterator[str]:
        """The targets of all symbolic links beneath the folder."""
        with not_too_deep():
            for _, folders, files, place in os.fwalk(".", dir_fd=self.fd):
                for name in (*folders, *files):
                    with suppress(OSError):
                        yield os.readlink(name, dir_fd=place)

    @contextmanager
    def _parent(self, name: str) -> "Iterator[tuple[int, str]]":
        """The descriptor of a name's folder, and the name's last part."""
        *folders, last = parts_of(name)
        if not folders:
            yield self.fd, last
            return
        with self.folder("/".join(folders)) as parent:
            yield parent.fd, last


@dataclass(frozen=True, slots=True)
class PlaceBeneath:
    """A folder beneath another, opened when needed."""

    root: Path  # an administrator's path
    name: str  # relative to it

    def open(self, *, make: int | None = None) -> OpenFolder:
        """As `OpenFolder.folder`."""
        with OpenFolder.at(self.root) as root:
            return root.folder(self.name, make=make)


@contextmanager
def not_too_deep() -> Iterator[None]:
    """Raises OSError where another account has nested folders deeper than a walk can get."""
    try:
        yield
    except RecursionError as error:
        raise OSError(errno.ELOOP, "holds folders that are nested too deeply; remove them") from error


def _made(part: str, mode: int, parent: int) -> bool:
    try:
        os.mkdir(part, mode, dir_fd=parent)
    except FileExistsError:
        return False
    return True


def _open_step(part: str, parent: int) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=parent)
    except NotADirectoryError as error:
        status = os.stat(part, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            raise
        text = "is a link, which is not followed; put the folder itself in its place, or mount it there"
        raise OSError(errno.ELOOP, text, part) from error
