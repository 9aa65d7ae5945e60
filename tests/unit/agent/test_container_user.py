"""Whose a folder of a container is."""

import os
from pathlib import Path

import pytest

from agent.containers.container_user import ContainerUser


@pytest.mark.parametrize(("uid", "gid", "changes"), [(0, 0, False), (1, 0, True), (0, 1, True)])
def test_a_folder_changes_hands_with_its_user_or_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, gid: int, changes: bool
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").touch()
    given: list[tuple[str, int, int]] = []
    monkeypatch.setattr(os, "lchown", lambda path, *ids: given.append((Path(path).name, *ids)))
    found = tmp_path.lstat()
    wanted = (found.st_uid + uid, found.st_gid + gid)
    ContainerUser(*wanted).take(tmp_path)
    names = ["below", "file", tmp_path.name]  # the folder itself last, as the mark that all is done
    assert given == [(name, *wanted) for name in names if changes]
