"""A server's options by destination: which the user may not set, and which need a grant. Types and the check.

Servers accept several spellings of one option, and abbreviations. The tables therefore name destinations by their first
long spelling, and `destination` finds the one that a spelling means.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from controller.domain.grants import Grant
from controller.engines.base import RefusedFlagError, SpecError
from schemas.manifest.deployment import DeploymentSpec

_NUMBER: Final = re.compile(r"-[0-9.][0-9.eE+-]*")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed, which templates have
_INLINE: Final = ("{{", "{%", "\n")  # a template itself, and not the name of its file
_OFF: Final = (False, None)
Allowed = Callable[[DeploymentSpec, Any], bool]


@dataclass(frozen=True, slots=True)
class Limit:
    """What to do instead of setting an option, and where it is allowed nevertheless."""

    fix: str
    allowed: Allowed = lambda _spec, _value: False


@dataclass(frozen=True, slots=True)
class Privilege:
    """An option that needs a grant.

    Attributes:
        grant: what operators need.
        why: what the option does, for the refusal.
        harmless: values that need no grant.
        files_only: only a value that names a file needs one; a template that is written out does not.
        keys: where the value is JSON, only these keys need one; empty: any value.
    """

    grant: Grant
    why: str
    harmless: frozenset[str] = frozenset()
    files_only: bool = False
    keys: frozenset[str] = frozenset()

    def concerns(self, value: Any) -> bool:
        """Whether this value of the option needs the grant."""
        if value in _OFF:
            return False
        items = value if isinstance(value, list) else [value]
        return any(self._concerns_one(str(item)) for item in items)

    def _concerns_one(self, item: str) -> bool:
        if self.files_only:
            return not any(mark in item for mark in _INLINE) and ("/" in item or item.startswith(("~", ".")))
        if self.keys:
            return bool(self.keys & set(_json_keys(item)))
        return item not in self.harmless


@dataclass(frozen=True, slots=True)
class Options:
    """One server's options.

    Attributes:
        aliases: other long spellings, with the destination.
        short: spellings that the server takes with one dash only, with the destination.
        limits: destinations that Gpuward sets itself, or that would outgrow the claim.
        privileged: destinations that need a grant.
        exact: harmless options that are also the beginning of a listed one.
    """

    aliases: Mapping[str, str] = field(default_factory=dict)
    short: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    privileged: Mapping[str, Privilege] = field(default_factory=dict)
    exact: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """All long spellings that are listed."""
        return frozenset({*self.aliases, *self.limits, *self.privileged})

    def destination(self, flag: str) -> str:
        """The option that a spelling means; the spelling itself where none is listed."""
        return self.aliases.get(flag) or self.short.get(flag, flag)

    def check(self, spec: DeploymentSpec, known: frozenset[str], dashed: Callable[[str], str]) -> None:
        """Refuses args that would outgrow the claim, repeat an option, or that a server would read as another one.

        Args:
            spec: of the deployment.
            known: further spellings that the engine reads.
            dashed: the flag of an arg.

        Raises:
            RefusedFlagError: names the arg.
        """
        listed = self.names | known | self.exact
        self._refuse_repeated(spec, dashed)
        for name, value in spec.args.items():
            flag = dashed(name)
            if flag in self.short and flag not in listed:
                target = self.short[flag]
                limit = self.limits.get(target)
                raise RefusedFlagError(f"args.{name}: {limit.fix if limit else f'write it out as {target}'}")
            if flag not in listed and (meant := sorted(one for one in listed if one.startswith(flag))):
                raise RefusedFlagError(f"args.{name}: the server would read it as {meant[0]}; write the flag out")
            _check_value(name, value)
            limit = self.limits.get(self.destination(f"no-{flag}" if value is False else flag))
            if limit is not None and value is not None and not limit.allowed(spec, value):
                # Those that all engines have were never accepted, so no stored spec has them.
                refusal = SpecError if flag in COMMON_FLAGS else RefusedFlagError
                raise refusal(f"args.{name}: {limit.fix}")

    def _refuse_repeated(self, spec: DeploymentSpec, dashed: Callable[[str], str]) -> None:
        """Of two spellings of an option, or a switch and its negation, the server takes the later one.

        The estimate may read the other.
        """
        seen: dict[str, str] = {}
        for name, value in spec.args.items():
            option = self.destination(dashed(name)).removeprefix("no-")
            if value is not None and (other := seen.setdefault(self.destination(option), name)) != name:
                raise RefusedFlagError(f"args.{name}: is the same option as {other}; write only one of them")


def _check_value(name: str, value: Any) -> None:
    for item in value if isinstance(value, list) else [value]:
        text = item if isinstance(item, str) else ""
        if text.startswith("-") and not _NUMBER.fullmatch(text):
            raise RefusedFlagError(f"args.{name}: a value that begins with '-' would be read as another flag")
        if _CONTROL.search(text):
            raise RefusedFlagError(f"args.{name}: contains control characters; remove them")


def _json_keys(text: str) -> Iterator[str]:
    """All keys in a JSON text; where it is none, every word, so that nothing is overlooked."""
    try:
        found = json.loads(text)
    except ValueError:
        yield from re.findall(r"\w+", text)
        return
    todo = [found]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            yield from one
        todo.extend(one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())


def whole_gpus(spec: DeploymentSpec, _value: Any = None) -> bool:
    """Whether the spec claims whole GPUs, where no other instance can be harmed."""
    return spec.resources.exclusive or spec.resources.gpu_memory == "all"


def host_memory_stated(spec: DeploymentSpec, _value: Any = None) -> bool:
    """Whether the spec states the host's memory, which is then claimed."""
    return spec.resources.host_memory != "auto"


# What to do instead of setting an option.
BY_PARALLEL: Final = "is set by Gpuward; set it under parallel"
BY_PLACEMENT: Final = "is set by Gpuward; it follows from the placement"
BY_RESOURCES: Final = "is set by Gpuward; set resources.gpu_memory instead, which is then claimed"
BY_MODEL: Final = "is set by Gpuward; set it as model"
BY_REVISION: Final = "is set by Gpuward; set it as model: hf:org/name@revision"
BY_PROXY: Final = "is set by Gpuward; the agent's proxy serves it"
BY_AGENT: Final = "is set by Gpuward; the agent chooses it"
BY_ARGS: Final = "is set by Gpuward; write what is in the file under args"
DRAFT: Final = Limit(
    "a draft model is not in the estimate; claim whole GPUs by resources.gpu_memory: all, or remove it", whole_gpus
)
HOST_MEMORY: Final = Limit("takes memory of the host; state resources.host_memory, which is then claimed",
                           host_memory_stated)  # fmt: skip
CODE: Final = Privilege(Grant.CODE, "loads code that does not come with the engine")
REMOTE_CODE: Final = Privilege(Grant.CODE, "runs code that comes with the model")
PROGRAM: Final = Privilege(Grant.CODE, "runs programs on the host")
READS: Final = Privilege(Grant.HOST_FILES, "reads files of the host")
WRITES: Final = Privilege(Grant.HOST_FILES, "writes files on the host")
TEMPLATE: Final = Privilege(Grant.HOST_FILES, "reads a file of the host; write the template itself", files_only=True)
LISTED_FILE: Final = Privilege(Grant.HOST_FILES, "reads a file of the host", files_only=True)
# Flags that several engines have, so that they do not show which engine is meant.
COMMON_FLAGS: Final = frozenset({"host", "port", "model", "revision", "device", "config"})
