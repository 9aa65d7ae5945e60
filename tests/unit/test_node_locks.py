"""The locks of Node.js packages pin each package by its hash, and name no registry."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("ui", "tests/clients")


def packages(folder: str) -> dict[str, dict[str, Any]]:
    """Of the folder's lock, by path; its own package is at the empty path."""
    found: dict[str, dict[str, Any]] = json.loads((ROOT / folder / "package-lock.json").read_text())["packages"]
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_package_has_a_hash_and_no_address(folder: str) -> None:
    others = {path: package for path, package in packages(folder).items() if path}
    assert others
    assert [path for path, package in others.items() if not package.get("integrity", "").startswith("sha512-")] == []
    assert [path for path, package in others.items() if "resolved" in package] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_lock_has_the_versions_that_the_folder_requires(folder: str) -> None:
    required = json.loads((ROOT / folder / "package.json").read_text())
    locked = packages(folder)
    for name, version in {**required["dependencies"], **required.get("devDependencies", {})}.items():
        assert locked[f"node_modules/{name}"]["version"] == version
