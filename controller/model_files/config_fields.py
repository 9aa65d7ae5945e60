"""Looks up fields in a config.json. Fields have many names, and the language part may be nested."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

# Multimodal models nest the fields of their language part under one of these. The last two hold the fields of attention
# and experts in DBRX and MPT.
_LANGUAGE: Final = (
    "text_config", "llm_config", "language_config", "thinker_config", "attn_config", "ffn_config",
)  # fmt: skip
_VISION: Final = ("vision_config", "visual")
_MAX_COUNT: Final = 2**31
# Words end up in notes, rows and messages.
_WORD: Final = re.compile(r"[A-Za-z0-9_.+-]{1,100}", re.ASCII)
_MAX_WORDS: Final = 8


@dataclass(frozen=True, slots=True)
class ConfigScopes:
    """Nested objects of a config, innermost first, and the defaults of the model's own code."""

    scopes: tuple[Mapping[str, Any], ...]
    defaults: Mapping[str, int]

    def value(self, *names: str) -> Any:
        """The first value that is not null."""
        for scope in self.scopes:
            for name in names:
                if scope.get(name) is not None:
                    return scope[name]
        return None

    def count(self, *names: str) -> int | None:
        """The first integer above zero under one of these names, else the default."""
        for scope in self.scopes:
            for name in names:
                if is_count(scope.get(name)):
                    return int(scope[name])
        return next((self.defaults[name] for name in names if name in self.defaults), None)

    def least(self, *names: str) -> int | None:
        """The smallest integer above zero under these names, in the innermost object that has one."""
        for scope in self.scopes:
            if counts := [int(scope[name]) for name in names if is_count(scope.get(name))]:
                return min(counts)
        return self.count(*names)

    def flag(self, name: str) -> bool | None:
        value = self.value(name)
        return value if isinstance(value, bool) else None

    def word(self, *names: str) -> str | None:
        """A word without spaces or symbols, such as the name of a type."""
        value = self.value(*names)
        return value if is_word(value) else None


def is_count(value: object) -> bool:
    """Whether a JSON value is an integer above zero and below a sane limit."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_COUNT


def is_word(value: object) -> bool:
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def words(value: object) -> tuple[str, ...]:
    return tuple(w for w in value[:_MAX_WORDS] if is_word(w)) if isinstance(value, list) else ()


def language_scopes(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The objects with fields of the language part, innermost first, the complete config last."""
    return tuple(reversed(list(_down(config, depth=3))))


def _down(config: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    yield config
    if depth:
        for name in _LANGUAGE:
            if isinstance(config.get(name), dict):
                yield from _down(config[name], depth - 1)


def vision_scope(scopes: tuple[Mapping[str, Any], ...]) -> Mapping[str, Any] | None:
    return next(
        (scope[name] for scope in reversed(scopes) for name in _VISION if isinstance(scope.get(name), dict)), None
    )
