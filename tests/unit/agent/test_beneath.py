"""Names beneath an open folder lead where the kernel's own `openat2` lets them, and never outside."""

import ctypes
import errno
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model_cache.beneath import OpenFolder, is_beneath

_OPENAT2 = 437  # on all architectures
_BENEATH, _NO_SYMLINKS = 0x08, 0x04

PARTS = st.sampled_from(["a", "b", "c", "..", ".", "", "out", "up", "self", "file"])


def _kernel_opens(folder: int, name: str) -> bool:
    """Whether `openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS` opens a file."""
    how = struct.pack("QQQ", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0, _BENEATH | _NO_SYMLINKS)
    libc = ctypes.CDLL(None, use_errno=True)
    opened = libc.syscall(_OPENAT2, folder, name.encode(), how, len(how))
    if opened < 0:
        if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM):
            pytest.skip("this kernel or container has no openat2")
        return False
    is_file = os.path.isfile(f"/proc/self/fd/{opened}")  # noqa: PTH113 - of a descriptor
    os.close(opened)
    return is_file


def _tree(top: Path) -> None:
    """Files, and links out of the folder, up, and within it."""
    outside = top / "outside"
    for folder in (outside / "a", top / "in" / "a" / "b", top / "in" / "c"):
        folder.mkdir(parents=True)
        (folder / "file").write_text(str(folder))
    inside = top / "in"
    (outside / "file").write_text("outside")
    (inside / "file").write_text("inside")
    for place in (inside, inside / "a", inside / "a" / "b"):
        (place / "out").symlink_to(outside)
        (place / "up").symlink_to("..")
        (place / "self").symlink_to(inside)
    (inside / "c" / "b").symlink_to(outside / "file")


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tree")
    _tree(made)
    return made


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(PARTS, min_size=1, max_size=5), absolute=st.booleans())
def test_a_file_is_opened_as_the_kernel_opens_it(top: Path, parts: list[str], *, absolute: bool) -> None:
    name = "/" * absolute + "/".join(parts)
    with OpenFolder.at(top / "in") as folder:
        try:
            text = folder.read_text(name)
        except (OSError, ValueError):
            if is_beneath(name):  # the kernel resolves `.` and `..` within the folder; here they are refused
                assert not _kernel_opens(folder.fd, name)
            return
        assert _kernel_opens(folder.fd, name)
        assert text.startswith(("inside", str(top / "in")))


@pytest.mark.parametrize("name", ["", "/", "/etc", "..", "../x", "a/../x", "a//x", "./a", "a/.", "a/", "a\0b"])
def test_a_name_that_climbs_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").mkdir()
    with OpenFolder.at(tmp_path) as folder:
        for call in _changes(folder):
            with pytest.raises(ValueError, match="outside its folder"):
                call(name)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["a"]


def test_nothing_changes_behind_a_link(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "outside"
    outside.mkdir()
    inside.mkdir()
    (outside / "kept").write_text("kept")
    (inside / "link").symlink_to(outside)
    before = outside.stat()
    with OpenFolder.at(inside) as folder:
        for call in _changes(folder):
            for name in ("link/kept", "link/made"):
                with suppress(OSError):
                    call(name)
        with pytest.raises(OSError, match="is a link, which is not followed"):
            folder.replace_text("link/kept", "x")
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("kept", "kept")]
    assert (outside.stat().st_mtime_ns, outside.stat().st_mode) == (before.st_mtime_ns, before.st_mode)


def test_a_link_in_a_files_place_is_replaced_or_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    (tmp_path / "in").mkdir()
    link = tmp_path / "in" / "x"
    with OpenFolder.at(tmp_path / "in") as folder:
        link.symlink_to(target)
        with pytest.raises(OSError, match="symbolic links"):
            folder.open("x", os.O_WRONLY | os.O_APPEND)
        folder.touch("x", 1.0)
        folder.replace_text("x", "new")
        assert (link.is_symlink(), link.read_text()) == (False, "new")
        os.mkfifo(tmp_path / "in" / "pipe")
        with pytest.raises(OSError, match="not a regular file"):
            folder.read_text("pipe")
    assert target.read_text() == "kept"
    assert target.stat().st_mtime > 1.0


def test_a_removed_folder_leaves_what_its_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("kept")
    tree = tmp_path / "in" / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "link").symlink_to(tmp_path / "outside")
    with OpenFolder.at(tmp_path / "in") as folder:
        folder.remove_tree("tree")
    assert not tree.exists()
    assert (tmp_path / "outside" / "kept").read_text() == "kept"


def test_made_folders_have_their_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with OpenFolder.at(tmp_path) as folder:
            folder.folder("a/b", make=0o755).close()
    finally:
        os.umask(before)
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")} == {0o755}


def _changes(folder: OpenFolder) -> list[Callable[[str], object]]:
    return [
        lambda name: folder.folder(name, make=0o755).close(),
        lambda name: os.close(folder.open(name, os.O_WRONLY | os.O_CREAT)),
        lambda name: folder.replace_text(name, "x"),
        lambda name: folder.link(name, "/"),
        lambda name: folder.rename(name, "b"),
        lambda name: folder.touch(name, 0.0),
        folder.unlink,
        folder.remove_tree,
    ]
