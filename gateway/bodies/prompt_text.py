"""How many bytes of a JSON body are text that may be a prompt: all but media, which say nothing of tokens. Pure.

Media are the `data:` URLs and the Base64 under the keys by which requests send them. A text that looks like one is
under another key, and counts.
"""

import re
from collections.abc import Sequence
from typing import Final

_MARK: Final = b'"data'
_MOST_MEDIA: Final = 4096  # of a body: what follows counts as text
_NEAR: Final = 256  # bytes around a mark that tell whether a medium begins there
_KEY_BEFORE: Final = re.compile(
    rb'"(?:url|(?:image|audio|video|file|input_audio)(?:_url|_data)?)"[ \t\r\n]*:[ \t\r\n]*\Z', re.IGNORECASE
)
_DATA_URL: Final = re.compile(rb'"data:[^",]{0,128};base64,', re.IGNORECASE)
_DATA_KEY: Final = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*"(?=[A-Za-z0-9+/_-]{64})')


def prompt_bytes(pieces: Sequence[bytes]) -> int:
    """Bytes of a body's pieces without media, wherever it is cut into pieces."""
    counted = found = at = 0
    text = b""
    within = False  # a medium
    for number, piece in enumerate(pieces):
        text = text[max(0, at - _NEAR) :] + piece
        at = min(at, _NEAR)
        last = number == len(pieces) - 1
        decided = max(at, len(text) if last else len(text) - _NEAR)  # what begins behind it may go on in the next piece
        while at < len(text):
            if within:
                end = text.find(b'"', at)
                within, at = end < 0, len(text) if end < 0 else end
                continue
            mark = text.find(_MARK, at) if found < _MOST_MEDIA else -1
            if not 0 <= mark < decided:
                counted, at = counted + max(0, decided - at), max(at, decided)
                break
            found += 1
            begins = _begin_of_medium(text, mark)
            stop = mark + len(_MARK) if begins is None else begins
            counted, at, within = counted + stop - at, stop, begins is not None
    return counted


def _begin_of_medium(text: bytes, mark: int) -> int | None:
    """Where a medium begins behind a mark; None: there is none."""
    key = _DATA_KEY.match(text, mark)
    if key is not None:
        return key.end()
    url = _DATA_URL.match(text, mark)
    if url is not None and _KEY_BEFORE.search(text[max(0, mark - _NEAR // 2) : mark]) is not None:
        return url.end()
    return None
