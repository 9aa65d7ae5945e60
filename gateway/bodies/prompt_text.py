"""How many bytes of a JSON body are text that may be a prompt: all but media, whose size shows no tokens. Pure.

Media are the `data:` URLs and the Base64 under the keys by which requests send them. A text that looks like one is
under another key, and counts.
"""

import re
from typing import Final

_MARK: Final = b'"data'
_MOST_MEDIA: Final = 4096  # of a body: what follows counts as text
_NEAR: Final = 256  # bytes around a mark that decide whether a medium begins there
_KEY_BEFORE: Final = re.compile(
    rb'"(?:url|(?:image|audio|video|file|input_audio)(?:_url|_data)?)"[ \t\r\n]*:[ \t\r\n]*\Z', re.IGNORECASE
)
_DATA_URL: Final = re.compile(rb'"data:[^",]{0,128};base64,', re.IGNORECASE)
_DATA_KEY: Final = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*"(?=[A-Za-z0-9+/_-]{64})')


def prompt_bytes(body: bytes) -> int:
    """Bytes of a body without media."""
    counted = media = at = 0
    while True:
        mark = body.find(_MARK, at) if media < _MOST_MEDIA else -1
        if mark < 0:
            return counted + len(body) - at
        media += 1
        begin = _begin_of_medium(body, mark)
        stop = mark + len(_MARK) if begin is None else begin
        counted += stop - at
        at = stop
        if begin is not None:
            end = body.find(b'"', begin)
            at = len(body) if end < 0 else end


def _begin_of_medium(text: bytes, mark: int) -> int | None:
    """Where a medium begins behind a mark; None without one."""
    key = _DATA_KEY.match(text, mark)
    if key is not None:
        return key.end()
    url = _DATA_URL.match(text, mark)
    if url is not None and _KEY_BEFORE.search(text[max(0, mark - _NEAR // 2) : mark]) is not None:
        return url.end()
    return None
