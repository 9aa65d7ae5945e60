"""The types of tables of a server's options, and the check: options that users may not set, or that need a grant.

Servers accept several spellings of one option, and abbreviations. The tables therefore name each option by its first
long spelling, its destination.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from controller.domain.access.grants import Grant
from controller.engines.arguments.flags import args_of
from controller.engines.base import RefusedFlagError, SpecError
from schemas.manifest.deployment import DeploymentSpec

_NUMBER: Final = re.compile(r"-[0-9.][0-9.eE+-]*")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed, which templates have
_INLINE: Final = ("{{", "{%", "\n")  # a template itself, and not the name of its file
_OFF: Final = (False, None)
V = TypeVar("V")
Allowed = Callable[[DeploymentSpec, Any], bool]


@dataclass(frozen=True, slots=True)
class Limit:
    """The fix for an option that users may not set, and when it is allowed nevertheless."""

    fix: str
    allowed: Allowed = lambda _spec, _value: False


@dataclass(frozen=True, slots=True)
class Privilege:
    """An option that needs a grant."""

    grant: Grant  # what operators need
    why: str  # what the option does, for the refusal
    harmless: frozenset[str] = frozenset()  # values that need no grant
    files_only: bool = False  # only a value that names a file needs the grant; an inline template does not
    keys: frozenset[str] = frozenset()  # if the value is JSON, only these keys need the grant; empty: any value

    def concerns(self, value: Any) -> bool:
        """Whether this value of the option needs the grant."""
        if value in _OFF:
            return False
        items = value if isinstance(value, list) else [value]
        return any(self._concerns_one(as_text(item)) for item in items)

    def _concerns_one(self, item: str) -> bool:
        if self.files_only:
            return not any(mark in item for mark in _INLINE) and ("/" in item or item.startswith(("~", ".")))
        if self.keys:
            return bool(self.keys & set(_json_keys(item)))
        return item not in self.harmless


@dataclass(frozen=True, slots=True)
class Options:
    """One server's options."""

    aliases: Mapping[str, str] = field(default_factory=dict)  # other long spellings, with the destination
    # spellings with one dash only, with the destination
    short: Mapping[str, str] = field(default_factory=dict)
    # destinations that Gpuward sets itself, or that would outgrow the claim
    limits: Mapping[str, Limit] = field(default_factory=dict)
    privileged: Mapping[str, Privilege] = field(default_factory=dict)  # destinations that need a grant
    exact: frozenset[str] = frozenset()  # harmless options that are also the start of a listed option

    @property
    def names(self) -> frozenset[str]:
        return frozenset({*self.aliases, *self.aliases.values(), *self.limits, *self.privileged})

    def destination(self, flag: str) -> str:
        """The option with this spelling; the spelling itself if it is not listed."""
        return self.aliases.get(flag) or self.short.get(flag, flag)

    def check(self, spec: DeploymentSpec, known: frozenset[str]) -> None:
        """Refuses args that would outgrow the claim, repeat an option, or that a server would read as another option.

        Raises:
            RefusedFlagError: names the arg.
        """
        listed = self.names | known | self.exact
        self._refuse_repeated(spec)
        for arg in args_of(spec):
            name, flag, value = arg.name, arg.flag, arg.value
            if flag in self.short and flag not in listed:
                target = self.short[flag]
                limit = self.limits.get(target)
                raise RefusedFlagError(f"args.{name}: {limit.fix if limit else f'write it out as {target}'}")
            if flag not in listed and (meant := sorted(name for name in listed if name.startswith(flag))):
                raise RefusedFlagError(f"args.{name}: the server would read it as {meant[0]}; write the flag out")
            _check_value(name, value)
            if value is False and flag.startswith("no-"):
                raise RefusedFlagError(f"args.{name}: is switched off twice; remove it, or write {flag[3:]}: true")
            limit = self._limit(flag, value)
            if limit is not None and value is not None and not limit.allowed(spec, value):
                # Flags of all engines were never accepted, so no stored spec has them.
                refusal = SpecError if flag in COMMON_FLAGS else RefusedFlagError
                raise refusal(f"args.{name}: {limit.fix}")

    def _limit(self, flag: str, value: Any) -> Limit | None:
        """The limit on the effect of a flag: `false` switches off, like the negated flag."""
        if value is not False:
            return self.limits.get(self.destination(flag))
        switched_on = f"enable-{flag.removeprefix('disable-')}" if flag.startswith("disable-") else f"no-{flag}"
        limits = (self.limits.get(self.destination(name)) for name in (switched_on, f"no-{flag}"))
        return next((limit for limit in limits if limit is not None), None)

    def _refuse_repeated(self, spec: DeploymentSpec) -> None:
        """Refuses two spellings of an option, and a switch with its negation."""
        # The server takes the later one, and the estimate may read the other.
        first: dict[str, str] = {}
        for arg in args_of(spec):
            option = self.destination(arg.flag).removeprefix("no-")
            if arg.value is not None and (other := first.setdefault(self.destination(option), arg.name)) != arg.name:
                raise RefusedFlagError(f"args.{arg.name}: is the same option as {other}; write only one of them")


def as_text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _check_value(name: str, value: Any) -> None:
    for item in value if isinstance(value, list) else [value]:
        text = item if isinstance(item, str) else "".join(_texts(item))
        if text.startswith("-") and not _NUMBER.fullmatch(text):
            raise RefusedFlagError(f"args.{name}: a value that begins with '-' would be read as another flag")
        if _CONTROL.search(text):
            raise RefusedFlagError(f"args.{name}: contains control characters; remove them")


def _texts(value: Any) -> Iterator[str]:
    """All texts within a value, each after a blank, with which no flag starts."""
    if isinstance(value, dict | list):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from (" ", item) if isinstance(item, str) else _texts(item)


def _json_keys(text: str) -> Iterator[str]:
    """All keys in a JSON text; if it is not JSON, every word, so that no key is missed."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        yield from re.findall(r"\w+", text)
        return
    todo = [parsed]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            yield from value
        todo.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())


def whole_gpus(spec: DeploymentSpec, _value: Any = None) -> bool:
    """Whether the spec claims GPUs exclusively, so that no other instance can be harmed."""
    return spec.resources.exclusive or spec.resources.gpu_memory == "all"


def host_memory_stated(spec: DeploymentSpec, _value: Any = None) -> bool:
    return spec.resources.host_memory != "auto"


def gpu_memory_stated(spec: DeploymentSpec, _value: Any = None) -> bool:
    """Whether the spec states the memory of each GPU, or claims GPUs exclusively."""
    return isinstance(spec.resources.gpu_memory, int) or whole_gpus(spec)


def memories_stated(spec: DeploymentSpec, _value: Any = None) -> bool:
    return gpu_memory_stated(spec) and host_memory_stated(spec)


class Refused:
    """Fixes for options that users may not set."""

    PARALLEL = Limit("is set by Gpuward; set it under parallel")
    PLACEMENT = Limit("is set by Gpuward; it follows from the placement")
    RESOURCES = Limit("is set by Gpuward; set resources.gpu_memory instead, which is then claimed")
    MODEL = Limit("is set by Gpuward; set it as model")
    REVISION = Limit("is set by Gpuward; set it as model: hf:org/name@revision")
    PROXY = Limit("is set by Gpuward; the agent's proxy serves it")
    AGENT = Limit("is set by Gpuward; the agent chooses it")
    ARGS = Limit("is set by Gpuward; write what is in the file under args")
    PLAIN_HTTP = Limit("probe and proxy speak plain HTTP on the host; put TLS before the gateway, and leave it out")
    KEYS = Limit("keys are checked by the gateway, which sends none on; leave it out: gpuward key create")
    OWN_PATHS = Limit("probe and gateway ask for the server's own paths; leave it out")
    COUNTED = Limit("requests are counted by the server's metrics; leave it out")
    ONE_PART = Limit("serves only a part of the work, and Gpuward does not connect the parts; leave it out")
    PRINTS = Limit("prints something and exits, so that nothing is served; run the program by hand")
    DRAFT = Limit(
        "a draft model that cannot be read is not in the estimate; state resources.gpu_memory, or remove it",
        gpu_memory_stated,
    )
    OFFLOADED = Limit(
        "keeps weights in the host's memory, and how many cannot be reckoned; state resources.gpu_memory and "
        "resources.host_memory",
        memories_stated,
    )
    HOST_MEMORY = Limit("takes memory of the host; state resources.host_memory, which is then claimed",
                               host_memory_stated)  # fmt: skip
    FOR_EACH_GPU = Limit(
        "takes memory of the host for each GPU; state resources.gpus, or resources.host_memory",
        lambda spec, value: (
            str(value) == "0" or host_memory_stated(spec) or spec.gpus_stated is not None or spec.takes_all_named_gpus
        ),
    )


class Needs:
    """Privileges of options."""

    CODE = Privilege(Grant.CODE, "loads code that does not come with the engine")
    REMOTE_CODE = Privilege(Grant.CODE, "runs code that comes with the model")
    PROGRAM = Privilege(Grant.CODE, "runs programs on the host")
    READS = Privilege(Grant.HOST_FILES, "reads files of the host")
    WRITES = Privilege(Grant.HOST_FILES, "writes files on the host")
    TEMPLATE = Privilege(Grant.HOST_FILES, "reads a file of the host; write the template itself", files_only=True)
    LISTED_FILE = Privilege(Grant.HOST_FILES, "reads a file of the host", files_only=True)


def each(value: V, *names: str) -> dict[str, V]:
    return dict.fromkeys(names, value)


# Flags that several engines have, so that they do not show which engine is meant.
COMMON_FLAGS: Final = frozenset({"host", "port", "model", "revision", "device", "config"})
