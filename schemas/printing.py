"""Text as it is shown. Control characters of others' text would move a cursor, or forge lines of a log."""

import re
from collections.abc import MutableMapping, Sequence
from typing import Any, Final

_SPACES: Final = {"\n": " ", "\r": " ", "\t": " "}
_BLOCK: Final = frozenset("\n\t")
_MULTILINE: Final = frozenset({"exception", "stack"})
# As JSON, control characters below the space are escaped already. These are not, and terminals obey some of them.
_NOT_IN_JSON: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def escaped(character: str) -> str:
    r"""A character as Python writes it, such as `\x1b`."""
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def one_line(text: str) -> str:
    """One line: line breaks and tabs become spaces, other characters that do not print are shown escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _SPACES.get(c) or escaped(c) for c in text)


def block(text: str) -> str:
    """Lines: line breaks and tabs stay, other characters that do not print are shown escaped."""
    return "".join(c if c.isprintable() or c in _BLOCK else escaped(c) for c in text)


def first_of(names: Sequence[object], most: int) -> str:
    """The first names, and the number of the remaining ones."""
    return ", ".join(map(str, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def safe_json(text: str) -> str:
    """The same JSON, with every character escaped that a terminal might obey."""
    return _NOT_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escape_log_event(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor, the last one before the renderer: no value can forge a line or move the cursor."""
    for key, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[key] = block(value) if key in _MULTILINE else one_line(value)
    return event
