"""A model's folder that the controller may not read: the message names whose account needs the right."""

import errno
import os
from pathlib import Path

import pytest

from controller.model_files.files import LocalFolder, MetadataError


def closed(*_: object, **__: object) -> None:
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_closed_folder_names_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(MetadataError, match=f"controller's account .*uid {os.geteuid()}") as refused:
        LocalFolder(tmp_path)
    assert refused.value.retryable


def test_a_closed_file_names_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    folder = LocalFolder(tmp_path)
    monkeypatch.setattr(Path, "open", closed)
    with pytest.raises(MetadataError, match=f"controller's account .*uid {os.geteuid()}"):
        folder.read("config.json", 0, 2)


def test_a_folder_that_is_not_there_needs_no_right(tmp_path: Path) -> None:
    with pytest.raises(MetadataError) as refused:
        LocalFolder(tmp_path / "none")
    assert "account" not in str(refused.value)
