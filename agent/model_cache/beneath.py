"""A folder held open, beneath which names are resolved: through no link, no `..`, and not from the root. Blocks.

A hub, a peer or another account of the host may have chosen the names, or have put links in the way. Each step opens
one folder of the one before it without following a link, which leads where `openat2` with `RESOLVE_BENEATH` and
`RESOLVE_NO_SYMLINKS` would, also on kernels and in containers that lack that call. To resolve a name once and to check
the path that comes of it would not do: what it leads through may change in between.
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
_MOST_PARTS: Final = 64  # of a name; a walk takes some of the interpreter's stack for each


def parts_of(name: str) -> list[str]:
    """The parts of a relative path with slashes.

    Raises:
        ValueError: it is absolute, has an empty part, `.`, `..` or NUL, or too many parts.
    """
    parts = name.split("/", _MOST_PARTS)
    if len(parts) > _MOST_PARTS:
        raise ValueError(f"{name[:80]!r}...: has more than {_MOST_PARTS} parts")
    if {"", ".", ".."} & set(parts) or "\0" in name:
        raise ValueError(f"{name!r}: names a place outside its folder")
    return parts


def is_beneath(name: str) -> bool:
    """Whether `parts_of` takes it."""
    try:
        return bool(parts_of(name))
    except ValueError:
        return False


class OpenFolder:
    """An open folder. All names are relative to it, with slashes.

    Each method raises OSError where the system refuses or a link is in the way, and ValueError as `parts_of`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def at(cls, path: Path) -> Self:
        """The folder at a path of the administrator's, whose links are followed."""
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
        """Opens a folder.

        Args:
            name: its path.
            make: the mode of the folders on the way that are made where they are missing; None: none is made.
        """
        found = OpenFolder(os.dup(self.fd))
        try:
            for part in parts_of(name):
                made = make is not None and _made(part, make, found.fd)
                inner = OpenFolder(_open_step(part, found.fd))
                if made and make is not None:
                    os.fchmod(inner.fd, make)  # whatever the umask
                found.close()
                found = inner
        except BaseException:
            found.close()
            raise
        return found

    def open(self, name: str, flags: int, mode: int = 0o644) -> int:
        """Opens a regular file; returns its descriptor."""
        with self._parent(name) as (parent, last):
            # Without O_NONBLOCK a pipe in the file's place would block for ever.
            fd = os.open(last, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "is not a regular file", name)
        return fd

    def read_text(self, name: str) -> str:
        """The content of a file of at most 16 MiB."""
        with os.fdopen(self.open(name, os.O_RDONLY), "rb") as file:
            content = file.read(_MOST_TEXT_BYTES + 1)
        if len(content) > _MOST_TEXT_BYTES:
            raise OSError(errno.EFBIG, "is too large", name)
        return content.decode()

    def replace_text(self, name: str, text: str, mode: int = 0o644) -> None:
        """Replaces a file, whole or not at all. Whatever has its name, such as a link, is replaced."""
        with self._parent(name) as (parent, last):
            new = f".{last}.lock"  # a name that Git gives to no branch or tag
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=parent)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(new, flags, mode, dir_fd=parent), "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(new, last, src_dir_fd=parent, dst_dir_fd=parent)

    def link(self, name: str, target: str) -> None:
        """Makes a symbolic link, in place of what has its name unless that is a folder or the same link."""
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
        """Of what has the name, a link itself."""
        with self._parent(name) as (parent, last):
            return os.stat(last, dir_fd=parent, follow_symlinks=False)

    def touch(self, name: str, now_s: float) -> None:
        """Sets its times, in seconds since 1970; to now where that is all that another account may."""
        with self._parent(name) as (parent, last):
            try:
                os.utime(last, (now_s, now_s), dir_fd=parent, follow_symlinks=False)
            except PermissionError:  # only its owner, or CAP_FOWNER, chooses the time
                os.utime(last, dir_fd=parent, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        """Removes a file or link, if it is there."""
        with suppress(FileNotFoundError), self._parent(name) as (parent, last):
            os.unlink(last, dir_fd=parent)

    def remove_tree(self, name: str) -> None:
        """Removes a folder and all in it, as far as that is possible; of links the links."""
        with suppress(OSError), not_too_deep(), self._parent(name) as (parent, last):
            shutil.rmtree(last, ignore_errors=True, dir_fd=parent)

    def entries(self) -> dict[str, os.stat_result]:
        """The status of each entry of the folder itself, of links their own."""
        found = {}
        with os.scandir(self.fd) as entries:
            for entry in entries:
                with suppress(OSError):
                    found[entry.name] = entry.stat(follow_symlinks=False)
        return found

    def links(self) -> Iterator[str]:
        """The targets of all symbolic links in it and in the folders beneath it."""
        with not_too_deep():
            for _, folders, files, place in os.fwalk(".", dir_fd=self.fd):
                for name in (*folders, *files):
                    with suppress(OSError):
                        yield os.readlink(name, dir_fd=place)

    @contextmanager
    def _parent(self, name: str) -> "Iterator[tuple[int, str]]":
        """The descriptor of the folder of a name, and the name's last part."""
        *folders, last = parts_of(name)
        if not folders:
            yield self.fd, last
            return
        with self.folder("/".join(folders)) as found:
            yield found.fd, last


@dataclass(frozen=True, slots=True)
class PlaceBeneath:
    """A folder beneath another one, opened when it is needed."""

    root: Path  # the folder above, of the administrator's
    name: str  # relative to it

    def open(self, *, make: int | None = None) -> OpenFolder:
        """Opens it; raises as `OpenFolder`. `make`: as for `OpenFolder.folder`."""
        with OpenFolder.at(self.root) as root:
            return root.folder(self.name, make=make)


@contextmanager
def not_too_deep() -> Iterator[None]:
    """Around a walk through folders, which another account may have nested deeper than a walk gets.

    Raises:
        OSError: they are.
    """
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
