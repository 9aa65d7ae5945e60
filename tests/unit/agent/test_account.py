"""Whose an instance's folder is, and which folders an account enters."""

import os
from pathlib import Path

import pytest

from agent.processes.account import Account

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@ROOT_ONLY
@pytest.mark.parametrize(("uid", "gid"), [(1, 0), (0, 1)])
def test_a_folder_changes_hands_with_its_user_or_group(tmp_path: Path, uid: int, gid: int) -> None:
    outside, work = tmp_path / "outside", tmp_path / "work"
    (work / "below").mkdir(parents=True)
    (work / "below" / "file").touch()
    outside.touch()
    (work / "link").symlink_to(outside)
    os.link(outside, work / "second-name")
    found = outside.stat()
    Account(found.st_uid + uid, found.st_gid + gid).take(work)
    for path in (work, work / "below", work / "below" / "file", work / "link"):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (found.st_uid + uid, found.st_gid + gid)
    assert (outside.stat().st_uid, outside.stat().st_gid) == (found.st_uid, found.st_gid)


@ROOT_ONLY
def test_a_folder_that_is_its_own_is_not_walked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.chown(tmp_path, 4711, 4711)
    Account(4711, 4711).take(tmp_path)
    assert (tmp_path / "file").stat().st_uid == 0


def test_an_account_is_stopped_at_the_first_closed_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    closed = next(path for path in (*reversed(tmp_path.parents), tmp_path) if path.stat().st_mode & 0o001 == 0)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert Account(4711, 4711).stopped_at(below) == closed
    assert Account(os.geteuid(), os.getegid()).stopped_at(below) is None
    assert Account(4711, 4711).stopped_at(Path("/usr/no-such-folder")) is None
