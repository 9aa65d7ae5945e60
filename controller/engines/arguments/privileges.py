"""What in a spec gives its process power over the host. Operators need it granted; administrators do not."""

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
UNKNOWN: Final = "is a flag that Gpuward does not know, so that what it does is unknown"


def powers(spec: DeploymentSpec) -> Iterator[Power]:
    """Everything in a spec that needs a grant. With `engine: auto`, what any of the engines would need."""
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
        return  # a program sets what it likes before it runs another one
    for name in spec.env:
        why = power_of(name, spec.engine)
        if why is not None:
            yield Power(f"env.{name}", Grant.ENVIRONMENT, why, unlisted=why == UNLISTED)


def ungranted(granted: Collection[Grant], spec: DeploymentSpec) -> list[Power]:
    """What of a spec needs other grants than these."""
    return [power for power in powers(spec) if power.grant not in granted]


def next_change_needs(spec: DeploymentSpec, granted: Collection[Grant]) -> str:
    """What a caller with these grants lacks to change a stored spec with unlisted fields; empty: nothing.

    Earlier versions asked no grant for it, so that the spec may be stored. It continues running.
    """
    lacking = [power for power in powers(spec) if power.unlisted and power.grant not in granted]
    if not lacking:
        return ""
    fields = ", ".join(power.path for power in lacking)
    grants = " and ".join(dict.fromkeys(power.grant for power in lacking))
    return f"{fields}: not listed as harmless; it goes on as it is, and the next change needs the grant {grants}"


def _of_arg(spec: DeploymentSpec, arg: Arg, tables: Mapping[str, Options]) -> Power | None:
    """What an arg can do by these tables of options; a flag that none of the servers has is unknown."""
    for table in tables.values():
        privilege = table.privileged.get(table.destination(arg.flag))
        if privilege is not None and privilege.concerns(arg.value):
            return Power(f"args.{arg.name}", privilege.grant, privilege.why)
    if not tables or arg.value is None or arg.value is False:
        return None  # nothing of it is on the command line, or only its negation
    known = any(
        arg.flag in table.names or arg.flag in table.short or knows(spec, engine, arg.flag)
        for engine, table in tables.items()
    )
    return None if known else Power(f"args.{arg.name}", Grant.CODE, UNKNOWN, unlisted=True)


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
