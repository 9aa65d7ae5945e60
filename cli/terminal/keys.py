"""Keys from the bytes of a terminal: a character is its own name, other keys have names such as `page-up`. Pure."""

import codecs
import re
from typing import Final

_NAMES: Final = {
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape", "\x03": "ctrl-c",
    "\x15": "ctrl-u",
}  # fmt: skip
_SEQUENCES: Final = {
    "A": "up", "B": "down", "H": "home", "F": "end",
    "1~": "home", "7~": "home", "4~": "end", "8~": "end", "5~": "page-up", "6~": "page-down",
}  # fmt: skip
_SEQUENCE: Final = re.compile(r"\x1b(?:\[([0-?]*[ -/]*[@-~])|O([@-~]))")
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_LONGEST: Final = 32  # characters of a sequence


class KeyReader:
    """Keys from bytes in any chunks. Keys without a name, and bytes that are no text, are left out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._rest = ""

    @property
    def undecided(self) -> bool:
        """True after an escape, which is a key, or the start of one."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        keys, at = [], 0
        while at < len(text):
            if (match := _SEQUENCE.match(text, at)) is not None:
                keys.append(_SEQUENCES.get(match[1] or match[2], ""))
                at = match.end()
            elif _UNFINISHED.match(text, at) and len(text) - at < _LONGEST:
                self._rest = text[at:]
                break
            else:
                keys.append(_key(text[at]))
                at += 1
        return [key for key in keys if key]

    def settle(self) -> list[str]:
        """The keys of an unfinished sequence that no bytes follow, such as the Escape key."""
        rest, self._rest = self._rest, ""
        return [key for key in map(_key, rest) if key]


def _key(character: str) -> str:
    return _NAMES.get(character) or (character if character.isprintable() else "")
