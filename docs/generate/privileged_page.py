"""docs/privileged.md: flags and variables that need a grant, and flags that are refused, from the engines' tables."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from agent.decide import engine_environment
from controller.engines.arguments.environment import NAMES, PREFIXES, SUFFIXES
from controller.engines.arguments.options import Limit, Privilege
from controller.engines.arguments.privileges import OPTIONS, powers, versions
from schemas.engine_variables import variables_of
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
    lines.append(
        "A flag that the server's own parser did not have in the version that Gpuward has read needs `code`. Of other"
    )
    lines.append("versions the nearest counts; where the version is unknown, as on a host, each of these does.")
    lines.append("")
    lines += [*table(("server", "versions that were read"), _versions())]
    lines.append("")
    lines += ["### containers", "", *table(("field", "grant", "what it does"), _of_containers()), ""]
    for engine, options in OPTIONS.items():
        lines += [f"### {engine}", "", *table(("flag", "grant", "what it does"), _privileged(options.privileged)), ""]
    lines += ["## Variables", ""]
    lines.append(
        "Operators may set those of the first table, as they are written there. Each other one needs the grant"
    )
    lines.append(
        "`environment`; the second table says what some of them can do. Who may write a `command` may set them."
    )
    lines += ["", *table(("engine", "variable", "what it sets"), _harmless()), ""]
    lines += [*table(("what it does", "variables"), _variables()), ""]
    lines += ["### Variables that engines get from their agent", ""]
    lines += ["[GPU hosts](hosts.md#variables-that-engines-get) describes how to pass on others. `*` is any end.", ""]
    lines += [*table(("what", "variables"), _of_agents()), ""]
    lines += ["## Flags that no deployment may set", ""]
    lines += ["They follow from other fields, or would take more than the instance claims.", ""]
    for engine, options in OPTIONS.items():
        other = defaultdict(list)
        for name, target in options.aliases.items():
            other[target].append(name)
        rows = _limits(options.limits, other)
        lines += [f"### {engine}", "", *table(("flag", "what to do instead"), rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def _of_agents() -> Iterable[list[str]]:
    of = vars(engine_environment)
    groups = (
        ("by name", sorted(of["_NAMES"])),
        ("proxies, in capital or small letters", sorted(of["_PROXIES"])),
        ("by prefix, but no names of credentials", [f"{prefix}*" for prefix in sorted(of["_PREFIXES"])]),
        ("never, by prefix", [f"{of['_OURS']}*"]),
    )
    return [[what, ", ".join(map(code, names))] for what, names in groups]


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


def _versions() -> Iterable[list[str]]:
    return [[code(engine), ", ".join(versions(engine))] for engine in OPTIONS]


def _harmless() -> Iterable[list[str]]:
    of_all = variables_of("custom")
    yield from (["all", code(name), meaning] for name, meaning in sorted(of_all.items()))
    for engine in OPTIONS:
        own = {name: meaning for name, meaning in variables_of(engine).items() if name not in of_all}
        yield from ([code(engine), code(name), meaning] for name, meaning in sorted(own.items()))


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
