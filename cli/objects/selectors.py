"""Label selectors as kubectl writes them: `app=chat,tier!=test,zone in (a,b),!old`. Pure."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_COMMA: Final = re.compile(r",(?![^()]*\))")  # commas in brackets separate the values of a set
_KEY: Final = r"([^\s=!,()]+)"
_EQUALS: Final = re.compile(rf"{_KEY}\s*(==|=|!=)\s*([^=!,()]*)")
_IN: Final = re.compile(rf"{_KEY}\s+(in|notin)\s*\(([^()]*)\)")
_EXISTS: Final = re.compile(rf"(!?)\s*{_KEY}")
_FORMS: Final = "key=value, key!=value, key in (a,b), key notin (a,b), key or !key"


class _Term(NamedTuple):
    """A condition on one key. `values`: empty where any value fits; `wanted`: False for a negated condition."""

    key: str
    values: frozenset[str]
    wanted: bool


class Selector(NamedTuple):
    """Conditions on labels, all of which must hold. `text`: as the user wrote it."""

    terms: tuple[_Term, ...]
    text: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        """A label that is missing has none of the values."""
        return all(_holds(term, labels) == term.wanted for term in self.terms)


def parse_selector(text: str) -> Selector:
    """Raises `ValueError` for an invalid selector, with the part and the valid forms."""
    return Selector(tuple(_term(part.strip()) for part in _COMMA.split(text)), text)


def _term(part: str) -> _Term:
    if match := _EQUALS.fullmatch(part):
        return _Term(match[1], frozenset({match[3].strip()}), match[2] != "!=")
    if match := _IN.fullmatch(part):
        return _Term(match[1], frozenset(value.strip() for value in match[3].split(",")), match[2] == "in")
    if match := _EXISTS.fullmatch(part):
        return _Term(match[2], frozenset(), not match[1])
    raise ValueError(f"{part!r} is not a valid label selector; write {_FORMS}, and commas between several")


def _holds(term: _Term, labels: Mapping[str, str]) -> bool:
    return term.key in labels and (not term.values or labels[term.key] in term.values)
