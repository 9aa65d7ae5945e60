"""Looks fields up in a config.json, whose language part may stand on a floor of its own, under many names."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

# Models that see, hear or speak keep their language part's figures below, under one of these; the last two are where
# DBRX and MPT keep what belongs to attention and experts.
_LANGUAGE: Final = (
    "text_config", "llm_config", "language_config", "thinker_config", "attn_config", "ffn_config",
)  # fmt: skip
_VISION: Final = ("vision_config", "visual")
_MAX_COUNT: Final = 2**31
# What is kept as text goes into notes, rows and messages.
_WORD: Final = re.compile(r"[A-Za-z0-9_.+-]{1,100}", re.ASCII)
_MAX_WORDS: Final = 8


@dataclass(frozen=True, slots=True)
class Floors:
    """Objects of a config, the innermost first, and what the model's own code takes where none of them says."""

    floors: tuple[Mapping[str, Any], ...]
    defaults: Mapping[str, int]

    def value(self, *names: str) -> Any:
        """The first value that is there and not null; None: nobody says."""
        for floor in self.floors:
            for name in names:
                if floor.get(name) is not None:
                    return floor[name]
        return None

    def count(self, *names: str) -> int | None:
        """The first whole number above zero under one of these names; None: nobody says."""
        for floor in self.floors:
            for name in names:
                if is_count(floor.get(name)):
                    return int(floor[name])
        return next((self.defaults[name] for name in names if name in self.defaults), None)

    def least(self, *names: str) -> int | None:
        """The smallest whole number above zero under any of these names, of the innermost object that has one."""
        for floor in self.floors:
            found = [int(floor[name]) for name in names if is_count(floor.get(name))]
            if found:
                return min(found)
        return self.count(*names)

    def flag(self, name: str) -> bool | None:
        """A boolean; None: nobody says."""
        value = self.value(name)
        return value if isinstance(value, bool) else None

    def word(self, *names: str) -> str | None:
        """A word without blanks or signs, such as a type's name."""
        value = self.value(*names)
        return value if is_word(value) else None


def is_count(value: object) -> bool:
    """Whether a value from JSON is a whole number above zero, and not absurd."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_COUNT


def is_word(value: object) -> bool:
    """Whether a value from JSON is a short word of plain letters."""
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def words(value: object) -> tuple[str, ...]:
    """The words of a list from JSON, the first few."""
    return tuple(w for w in value[:_MAX_WORDS] if is_word(w)) if isinstance(value, list) else ()


def language_floors(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The objects that speak of the language part, innermost first, the whole config last."""
    return tuple(reversed(list(_down(config, depth=3))))


def _down(config: Mapping[str, Any], depth: int) -> Iterator[Mapping[str, Any]]:
    yield config
    if depth:
        for name in _LANGUAGE:
            if isinstance(config.get(name), dict):
                yield from _down(config[name], depth - 1)


def vision_floor(floors: tuple[Mapping[str, Any], ...]) -> Mapping[str, Any] | None:
    """The object that speaks of the vision tower; None: there is none."""
    return next((f[name] for f in reversed(floors) for name in _VISION if isinstance(f.get(name), dict)), None)
