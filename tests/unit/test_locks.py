"""The locks agree with one another and with pyproject.toml, and name no registry."""

import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
RUNNING, DEVELOPING, PAGES = (ROOT / "locks" / name for name in ("product.txt", "dev.txt", "docs.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILDING = ("hatchling", "editables")


def pins(lock: Path) -> dict[str, set[str]]:
    """Versions by package; several where the supported Pythons need different ones."""
    found = defaultdict(set)
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", lock.read_text(), flags=re.MULTILINE):
        found[name].add(version)
    return found


def required(*extras: str) -> set[str]:
    """The project's own requirements with these extras, by name."""
    project = PROJECT["project"]
    texts = [*project["dependencies"], *(t for extra in extras for t in project["optional-dependencies"][extra])]
    return {canonicalize_name(Requirement(text).name) for text in texts} - {"gpuward"}


def test_each_lock_holds_what_it_is_for() -> None:
    running, developing = set(pins(RUNNING)), set(pins(DEVELOPING))
    assert required("controller", "agent") | set(BUILDING) <= running
    assert required("controller", "agent", "dev") <= running | developing
    only_for_tests = required("dev") - required("controller", "agent") - {"h11"}  # which a client of models also brings
    assert not only_for_tests & running, "running needs no tests or linters"


@pytest.mark.parametrize(("lock", "other"), [(DEVELOPING, RUNNING), (PAGES, RUNNING), (PAGES, DEVELOPING)])
def test_no_package_is_pinned_twice_differently(lock: Path, other: Path) -> None:
    mine, others = pins(lock), pins(other)
    differing = {name: (mine[name], others[name]) for name in mine.keys() & others if not mine[name] <= others[name]}
    assert not differing


@pytest.mark.parametrize("lock", sorted((ROOT / "locks").iterdir()), ids=lambda path: path.name)
def test_every_pin_has_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    for pin in re.split(r"\n(?=[A-Za-z0-9])", text.strip()):
        assert "--hash=sha256:" in pin, pin
