"""Label selectors as kubectl writes them: `app=chat,tier!=test,zone in (a,b),!old`. Pure."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_COMMA: Final = re.compile(r",(?![^()]*\))")  # those in brackets part the values of a set
_KEY: Final = r"([^\s=!,()]+)"
_EQUALS: Final = re.compile(rf"{_KEY}\s*(==|=|!=)\s*([^=!,()]*)")
_IN: Final = re.compile(rf"{_KEY}\s+(in|notin)\s*\(([^()]*)\)")
_EXISTS: Final = re.compile(rf"(!?)\s*{_KEY}")
_FORMS: Final = "key=value, key!=value, key in (a,b), key notin (a,b), key or !key"


class _Term(NamedTuple):
    """One demand. `values` is empty where the key alone counts; `wanted`: whether it must be so or must not."""

    key: str
    values: frozenset[str]
    wanted: bool


class Selector(NamedTuple):
    """Demands on labels, all of which hold for an object that is selected. `text`: as it was written."""

    terms: tuple[_Term, ...]
    text: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected. One without a key has none of its values."""
        return all(_holds(term, labels) == term.wanted for term in self.terms)


def parse_selector(text: str) -> Selector:
    """Parses a selector.

    Raises:
        ValueError: it is not valid. The message names the part and the forms that there are.
    """
    return Selector(tuple(_term(part.strip()) for part in _COMMA.split(text)), text)


def _term(part: str) -> _Term:
    if found := _EQUALS.fullmatch(part):
        return _Term(found[1], frozenset({found[3].strip()}), found[2] != "!=")
    if found := _IN.fullmatch(part):
        return _Term(found[1], frozenset(value.strip() for value in found[3].split(",")), found[2] == "in")
    if found := _EXISTS.fullmatch(part):
        return _Term(found[2], frozenset(), not found[1])
    raise ValueError(f"{part!r} is not a valid label selector; write {_FORMS}, and commas between several")


def _holds(term: _Term, labels: Mapping[str, str]) -> bool:
    return term.key in labels and (not term.values or labels[term.key] in term.values)
