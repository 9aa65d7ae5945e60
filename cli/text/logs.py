"""Engines' logs as they are shown: colours pass on a terminal, other control characters are shown escaped."""

import codecs
import re
from typing import Final

from schemas.printing import block

_COLOUR: Final = re.compile("(\x1b\\[[0-9;:]{0,32}m)")
_UNFINISHED: Final = re.compile("(\x1b(\\[[0-9;:]{0,32})?|\r)\\Z")


class LogText:
    """Turns the chunks of one log into text. A chunk may end within a character or a colour."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, chunk: bytes, *, last: bool = False) -> str:
        """The text of the next chunk; `last`: nothing follows."""
        text = self._rest + self._decoder.decode(chunk, final=last)
        self._rest = ""
        if not last and (match := _UNFINISHED.search(text)) is not None:
            text, self._rest = text[: match.start()], match[0]
        # Progress bars return to the line's start to overwrite it; here each state is a line of its own.
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not self._colours:
            return block(text)
        return "".join(part if n % 2 else block(part) for n, part in enumerate(_COLOUR.split(text)))
