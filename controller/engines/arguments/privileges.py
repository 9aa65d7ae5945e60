"""Fields of a spec that give its process power over the host, so that operators need grants for them.

The flags of each version of a server are those of its own parser (`make server-flags`).
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from controller.domain.access.grants import Grant, Power
from controller.engines.arguments.environment import UNLISTED, power_of
from controller.engines.arguments.flags import Arg, args_of
from controller.engines.arguments.llama_cpp_options import LLAMA_CPP
from controller.engines.arguments.options import Options
from controller.engines.arguments.sglang_options import SGLANG
from controller.engines.arguments.vllm_options import VLLM
from controller.engines.containers import DEFAULT_IMAGES
from controller.engines.servers.transformers import TRANSFORMERS
from schemas.manifest.deployment import DeploymentSpec

OPTIONS: Final[Mapping[str, Options]] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "llama-cpp": LLAMA_CPP,
    "transformers": TRANSFORMERS,
}
_FILE: Final = Path(__file__).with_name("server_flags.json")
# In a tag: `v0.28.0-cu129`, or the build of llama.cpp in `server-cuda-b9660`. CUDA's number has neither form.
_VERSION: Final = re.compile(r"(?:(?<![a-z0-9.])v?|(?<![a-z0-9])b)(\d{1,5}(?:\.\d{1,5}){0,2})(?!\d)", re.ASCII)
_PARTS: Final = 10**5  # above every part of a version that the pattern allows
UNKNOWN: Final = "is a flag that Gpuward does not know, so that what it does is unknown"


def powers(spec: DeploymentSpec) -> Iterator[Power]:
    """The fields of a spec that need a grant. With `engine: auto`, those that any engine would need."""
    if spec.command:
        yield Power("command", Grant.COMMAND, "runs a program on the host")
    if spec.image is not None:
        yield Power("image", Grant.CODE, "runs code that does not come with the engine")
    for source in spec.docker.volumes:
        yield Power(f"docker.volumes.{source}", Grant.HOST_FILES, "gives the container a folder of the host")
    tables = {name: table for name, table in OPTIONS.items() if spec.engine in (name, "auto")}
    for arg in args_of(spec):
        if (power := _of_arg(spec, arg, tables)) is not None:
            yield power
    if spec.command:
        return  # a program can set any variables before it runs another program
    for name in spec.env:
        why = power_of(name, spec.engine)
        if why is not None:
            yield Power(f"env.{name}", Grant.ENVIRONMENT, why, unlisted=why == UNLISTED)


def ungranted(granted: Collection[Grant], spec: DeploymentSpec) -> list[Power]:
    return [power for power in powers(spec) if power.grant not in granted]


def next_change_needs(spec: DeploymentSpec, granted: Collection[Grant]) -> str:
    """The grants that a change of a stored spec needs for its unlisted fields, as text; empty if the caller has them.

    Earlier versions required no grant for these fields, so a stored spec may have them. It continues to run.
    """
    lacking = [power for power in powers(spec) if power.unlisted and power.grant not in granted]
    if not lacking:
        return ""
    fields = ", ".join(power.path for power in lacking)
    grants = " and ".join(dict.fromkeys(power.grant for power in lacking))
    return f"{fields}: not listed as harmless; it goes on as it is, and the next change needs the grant {grants}"


def _of_arg(spec: DeploymentSpec, arg: Arg, tables: Mapping[str, Options]) -> Power | None:
    """The power of an arg by these tables of options. A flag that no server has is unknown."""
    for table in tables.values():
        privilege = table.privileged.get(table.destination(arg.flag))
        if privilege is not None and privilege.concerns(arg.value):
            return Power(f"args.{arg.name}", privilege.grant, privilege.why)
    if not tables or arg.value is None or arg.value is False:
        return None  # the command line has only its negation, if anything
    known = any(
        arg.flag in table.names or arg.flag in table.short or knows(spec, engine, arg.flag)
        for engine, table in tables.items()
    )
    return None if known else Power(f"args.{arg.name}", Grant.CODE, UNKNOWN, unlisted=True)


def knows(spec: DeploymentSpec, engine: str, flag: str) -> bool:
    """Whether this server has the flag, so that its table of options describes it.

    The version is that of the image; without its own table, the nearest version's table counts. If the version is
    unknown, as for a program that is installed on the host, a flag of any version counts.
    """
    tables = _tables()[engine]
    version = _version(spec, engine)
    if version is None:
        return any(flag in flags for flags in tables.values())
    return flag in tables[nearest(tuple(tables), version)]


def versions(engine: str) -> tuple[str, ...]:
    """The versions that have a table, oldest first; empty if the engine has no table."""
    return tuple(_tables().get(engine, ()))


def nearest(known: Sequence[str], version: str) -> str:
    """The version with the nearest number. Any minor version counts more than any patch."""
    wanted = _place(version)
    return min(known, key=lambda candidate: abs(_place(candidate) - wanted))


def _version(spec: DeploymentSpec, engine: str) -> str | None:
    if spec.runtime != "docker":
        return None
    image = spec.image or DEFAULT_IMAGES.get(engine, "")
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    match = _VERSION.search(tag)
    return None if match is None else match[1]


def _number(version: str) -> tuple[int, int, int]:
    parts = [int(part) for part in version.split(".")][:3]
    major, minor, patch = (*parts, 0, 0, 0)[:3]
    return major, minor, patch


def _place(version: str) -> int:
    major, minor, patch = _number(version)
    return (major * _PARTS + minor) * _PARTS + patch


@cache
def _tables() -> Mapping[str, Mapping[str, frozenset[str]]]:
    """The flags, without leading dashes, by engine and version."""
    stored: Mapping[str, Mapping[str, Sequence[str]]] = json.loads(_FILE.read_text(encoding="utf-8"))
    tables: dict[str, dict[str, frozenset[str]]] = {}
    for engine, flags in stored.items():
        known = sorted({version for having in flags.values() for version in having}, key=_number)
        tables[engine] = {v: frozenset(flag for flag, having in flags.items() if v in having) for v in known}
    return tables
