"""Which flags a version of a server has, by its own parser (`make server-flags`). Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from controller.engines.containers import DEFAULT_IMAGES
from schemas.manifest.deployment import DeploymentSpec

_FILE: Final = Path(__file__).with_name("server_flags.json")
# In a tag: `v0.28.0-cu129`, or the build of llama.cpp in `server-cuda-b9660`. The number of CUDA is of neither form.
_VERSION: Final = re.compile(r"(?:(?<![a-z0-9.])v?|(?<![a-z0-9])b)(\d{1,5}(?:\.\d{1,5}){0,2})(?!\d)", re.ASCII)

_PARTS: Final = 10**5  # more than the pattern takes for one part of a version


def knows(spec: DeploymentSpec, engine: str, flag: str) -> bool:
    """Whether this server has the flag, so that its table of options says what the flag can do.

    The version is that of the image. A version without a table counts as the nearest one that has one. Where the
    version is unknown, as for a program that is installed on the host, each may be meant, and all of them were read.
    """
    tables = _tables()[engine]
    version = _version(spec, engine)
    if version is None:
        return any(flag in flags for flags in tables.values())
    return flag in tables[nearest(tuple(tables), version)]


def versions(engine: str) -> tuple[str, ...]:
    """The versions that have a table, oldest first; none: the engine has no table."""
    return tuple(_tables().get(engine, ()))


def nearest(known: Sequence[str], version: str) -> str:
    """Of these versions the one with the nearest number, of which a minor version counts more than any patch."""
    wanted = _place(version)
    return min(known, key=lambda one: abs(_place(one) - wanted))


def _version(spec: DeploymentSpec, engine: str) -> str | None:
    if spec.runtime != "docker":
        return None
    image = spec.image or DEFAULT_IMAGES.get(engine, "")
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    found = _VERSION.search(tag)
    return None if found is None else found[1]


def _number(version: str) -> tuple[int, int, int]:
    parts = [int(part) for part in version.split(".")][:3]
    major, minor, patch = (*parts, 0, 0, 0)[:3]
    return major, minor, patch


def _place(version: str) -> int:
    major, minor, patch = _number(version)
    return (major * _PARTS + minor) * _PARTS + patch


@cache
def _tables() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """For each engine and version the flags, without dashes in front."""
    stored: Mapping[str, Mapping[str, Sequence[str]]] = json.loads(_FILE.read_text(encoding="utf-8"))
    found: dict[str, dict[str, frozenset[str]]] = {}
    for engine, flags in stored.items():
        known = sorted({version for these in flags.values() for version in these}, key=_number)
        found[engine] = {one: frozenset(flag for flag, these in flags.items() if one in these) for one in known}
    return found
