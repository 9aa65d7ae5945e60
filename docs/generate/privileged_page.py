"""docs/privileged.md: flags and variables that need a grant, and flags that are refused, from the engines' tables."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from controller.engines.environment import HARMLESS, NAMES, PREFIXES, SUFFIXES
from controller.engines.options import Limit, Privilege
from controller.engines.privileges import OPTIONS, powers
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.docker import DockerOptions
from tables import code, table

HEAD: Final = """\
# Flags and variables

<!-- Written by `make reference` from controller/engines/. Do not edit. -->

Gpuward reads the flags in `args` by what they mean, not by how they are written: another spelling, an underscore or the
beginning of a flag is treated like the flag itself. An option is written once: a second spelling of it is
refused. [Access](access.md) says which role may write what.
"""


def page() -> str:
    """The whole page."""
    lines = [HEAD, "## Flags that need a grant", ""]
    lines.append("Administrators may set them. Operators need the grant in `GPUWARD_OPERATORS_MAY`.")
    lines.append("")
    lines += ["### containers", "", *table(("field", "grant", "what it does"), _of_containers()), ""]
    for engine, options in OPTIONS.items():
        lines += [f"### {engine}", "", *table(("flag", "grant", "what it does"), _privileged(options.privileged)), ""]
    lines += ["## Variables that need the grant `environment`", ""]
    harmless = ", ".join(code(name) for name in sorted(HARMLESS))
    lines += [f"{harmless} need none. Upper and lower case count alike.", ""]
    lines += [*table(("what it does", "variables"), _variables()), ""]
    lines += ["## Flags that no deployment may set", ""]
    lines += ["They follow from other fields, or would take more than the instance claims.", ""]
    for engine, options in OPTIONS.items():
        other = defaultdict(list)
        for name, target in options.aliases.items():
            other[target].append(name)
        rows = _limits(options.limits, other)
        lines += [f"### {engine}", "", *table(("flag", "what to do instead"), rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def _of_containers() -> Iterable[list[str]]:
    container = DockerOptions(volumes={"/": "/host"})
    spec = DeploymentSpec(model="hf:org/name", engine="vllm", runtime="docker", image="own", docker=container)
    for power in powers(spec):
        yield [code(power.path.removesuffix("./")), code(power.grant), power.why]


def _privileged(privileged: Mapping[str, Privilege]) -> Iterable[list[str]]:
    for name, one in sorted(privileged.items()):
        why = one.why
        if one.harmless:
            why += f"; not with {', '.join(code(value) for value in sorted(one.harmless))}"
        if one.keys:
            why += f"; only with {', '.join(code(key) for key in sorted(one.keys))}"
        yield [code(name), code(one.grant), why]


def _variables() -> Iterable[list[str]]:
    by_power: defaultdict[str, list[str]] = defaultdict(list)
    for prefix, why in PREFIXES.items():
        by_power[why].append(f"{prefix}*")
    for suffix, why in SUFFIXES.items():
        by_power[why].append(f"*{suffix}")
    for name, why in NAMES.items():
        by_power[why].append(name)
    return [[why, ", ".join(code(name) for name in sorted(names))] for why, names in by_power.items()]


def _limits(limits: Mapping[str, Limit], other: Mapping[str, list[str]]) -> Iterable[list[str]]:
    for name, limit in sorted(limits.items()):
        yield [", ".join(code(one) for one in (name, *other.get(name, ()))), limit.fix]
