"""Lines of logs that messages quote: marked where they come in, and withheld where a reader may read no logs. Pure.

An agent says which part of its report is a line of a log. The hub puts marks around it, so that it can be told from the
rest in whatever is made of that message: the state of an instance and its deployment, events and their evidence, why a
rollout halts, what needs an operator. Every way out takes the marks away, or all that is between them: one place sees
to the API's answers, one to each stream, one to webhooks.

The marks are characters that Unicode keeps for such inner use; no text that comes in from elsewhere has them after the
hub, which takes them out of all that an agent reports. Where a message was cut, one of the two may be missing.
"""

import re
from typing import Final

BEGIN: Final = "\ufdd0"
END: Final = "\ufdd1"
WITHHELD: Final = "(a line of its log, withheld)"
_BEGIN: Final = BEGIN.encode()
_END: Final = END.encode()
_CHARACTER: Final = rb'(?:[^"\\]|\\.)'  # of a JSON string
_QUOTED: Final = re.compile(_BEGIN + _CHARACTER + rb"*?(?:" + _END + rb'|(?="))', re.DOTALL)
# From a quotation mark to the last part of a line, or else past the whole text: each text is looked through once.
_CUT: Final = re.compile(rb'"(?:(' + _CHARACTER + rb"*?" + _END + rb")|" + _CHARACTER + rb"*+)", re.DOTALL)


def quote(message: str, line: str) -> str:
    """The message with its first occurrence of `line` marked. Where it does not hold the line, all of it is."""
    message, line = plain(message), plain(line)
    if not line:
        return message
    before, found, after = message.partition(line)
    return f"{before}{BEGIN}{found}{END}{after}" if found else f"{BEGIN}{message}{END}"


def plain(text: str) -> str:
    """The text without marks."""
    return text.replace(BEGIN, "").replace(END, "")


def shown_json(body: bytes, *, logs: bool) -> bytes:
    """JSON as a reader gets it.

    Args:
        body: in UTF-8.
        logs: whether the reader may read logs: then the lines stay, and only their marks go.
    """
    if _BEGIN not in body and _END not in body:
        return body
    if not logs:
        body = _QUOTED.sub(WITHHELD.encode(), body)
        body = _CUT.sub(_without_cut_line, body) if _END in body else body
    return body.replace(_BEGIN, b"").replace(_END, b"")


def _without_cut_line(text: re.Match[bytes]) -> bytes:
    return text[0] if text[1] is None else b'"' + WITHHELD.encode()
