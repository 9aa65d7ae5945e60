"""The one grammar of forms (multipart/form-data) that the gateway lets pass. Pure.

Parsers of engines differ in what they make of an unusual form: which of two names they take, what a quote or a
line break ends. Such a form is refused, so that an engine cannot read another model than the gateway has read.
Clients write none: what browsers, curl and the common libraries send is in the grammar.
"""

import re
from typing import Final, NamedTuple
from urllib.parse import unquote, unquote_plus

from gateway.bodies.engine_controls import advice_on_part
from gateway.bodies.parameters import BadRequestError

FORM: Final = b"multipart/form-data"
MODEL: Final = "model"
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_PARAMETER: Final = re.compile(rb'[ \t]*;[ \t]*(%b+)=(?:"([^"\\]*)"|(%b+))' % (_TOKEN, _TOKEN))
_BOUNDARY: Final = re.compile(rb"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_LINE: Final = re.compile(rb"(%b+):([\t\x20-\x7e\x80-\xff]*)" % _TOKEN)
_NAME: Final = rb"[ !#$%&'()*+,./:<>?@\[\]^_`{|}~0-9A-Za-z-]+"
_BARE_NAME: Final = rb"[!#$%&'*+.\[\]^_`|~0-9A-Za-z-]+"
_FILE: Final = rb'filename=(?:"(?:[^"\x00-\x1f\x7f]|(?<=\\)")*(?<!\\)"|%b+)' % _TOKEN
# Not every parser sees that a quote is escaped, or that a semicolon is quoted: what follows must not name the part.
_UNQUOTED: Final = re.compile(rb'[^"]*"[^"]*(?:;|\\")')
_NAMES: Final = re.compile(rb"name[\s\"'\\*0-9]*=", re.IGNORECASE)
_EXTENDED: Final = rb"filename\*=(?i:utf-8)'[a-z-]*'[!#$%&'()*+,./:=?@^_`|~0-9A-Za-z-]+"
_AND: Final = rb"[ \t]*;[ \t]*"
_DISPOSITION: Final = re.compile(
    rb'form-data%b(?:name="(%b)"|name=(%b))((?:%b(%b))?(?:%b%b)?)'
    % (_AND, _NAME, _BARE_NAME, _AND, _FILE, _AND, _EXTENDED)
)
_TEXT: Final = re.compile(
    rb'(?:text/plain|multipart/form-data)(?:[ \t]*;[ \t]*charset="?(?:utf-8|us-ascii|iso-8859-1)"?)?', re.IGNORECASE
)
# Without a boundary it has no parts: clients for Android name each part's type as that of the form.
_NESTED: Final = re.compile(rb"multipart/.*boundary|message/", re.IGNORECASE)
_PLAIN: Final = frozenset((b"7bit", b"8bit", b"binary"))
_FIELDS: Final = frozenset(
    (b"content-disposition", b"content-type", b"content-transfer-encoding", b"content-length"),
)
_BEFORE_A_WORD: Final = "".join(chr(code) for code in range(128) if not (chr(code).isalnum() or chr(code) == "_"))
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")


class Part(NamedTuple):
    """What a part's head states. `length`: bytes of its content; None if not stated."""

    name: str
    length: int | None
    is_file: bool = False


def media_type(content_type: bytes) -> bytes:
    """The type without its parameters."""
    return content_type.partition(b";")[0].rstrip().lower()


def boundary_of(content_type: bytes) -> bytes:
    """The boundary that the type of a form states.

    Raises:
        BadRequestError: it does not state exactly one, or it states more.
    """
    given: dict[bytes, bytes] = {}
    at = len(FORM)
    while at < len(content_type):
        match = _PARAMETER.match(content_type, at)
        if match is None:
            raise BadRequestError("Content-Type: has no valid parameters; write multipart/form-data; boundary=TEXT")
        name = match[1].lower()
        if name in given or name not in (b"boundary", b"charset"):
            raise BadRequestError("Content-Type: of a form takes one boundary and one charset; leave out all else")
        given[name] = match[2] or match[3] or b""
        at = match.end()
    if given.get(b"charset", b"utf-8").lower() != b"utf-8":
        raise BadRequestError("Content-Type: charset of a form must be utf-8; leave it out")
    boundary = given.get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary):
        raise BadRequestError("Content-Type: multipart/form-data needs a boundary of 1 to 70 letters and digits")
    return boundary


def part_of(head: bytes) -> Part:
    """The head of a part, parsed. `head`: its lines, without the empty line at its end.

    Raises:
        BadRequestError: it is not in the grammar.
    """
    fields = _fields(head)
    disposition = _DISPOSITION.fullmatch(fields.get(b"content-disposition", b""))
    if disposition is None or _names_twice(disposition[4] or b""):
        raise BadRequestError(
            'body: each part of the form needs one Content-Disposition: form-data; name="NAME"; filename="FILE", '
            "the last for files; write %22 for a quote in FILE"
        )
    name = (disposition[1] or disposition[2]).decode()
    _check_name(name)
    _check_encoding(fields)
    if name == MODEL:
        _check_model(fields, is_file=bool(disposition[3]))
    length = fields.get(b"content-length")
    if length is not None and not _LENGTH.fullmatch(length):
        raise BadRequestError("body: Content-Length of a part must be a number; leave it out")
    return Part(name, None if length is None else int(length), bool(disposition[3]))


def _names_twice(file: bytes) -> bool:
    """Whether a parser may find a name of the part within that of its file."""
    return _UNQUOTED.match(file) is not None and _NAMES.search(file, len(b"filename=")) is not None


def _fields(head: bytes) -> dict[bytes, bytes]:
    """The fields of a part's head, each of which may occur once."""
    fields: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        match = _LINE.fullmatch(line)
        name = match[1].lower() if match else b""
        if match is None or name not in _FIELDS or name in fields:
            raise BadRequestError(
                "body: parts of the form take the lines Content-Disposition, Content-Type, Content-Transfer-Encoding "
                "and Content-Length, each once as NAME: VALUE"
            )
        fields[name] = match[2].strip(b" \t")
    return fields


def _check_name(name: str) -> None:
    # Parsers may decode and trim a name, and cut it behind its first word.
    plain = unquote(unquote_plus(name)).lower()
    base = re.split(r"[^a-z0-9_-]", plain.lstrip(_BEFORE_A_WORD), maxsplit=1)[0]
    if base == MODEL != name:
        raise BadRequestError(f"{name}: not a valid field of the form; name the model in the field model", name)
    if "_charset_" in plain:
        raise BadRequestError("_charset_: is not supported; leave it out and send the form in UTF-8", name)
    advice = advice_on_part(base)
    if advice:
        raise BadRequestError(f"{name}: is not passed on to engines; {advice}", name)


def _check_encoding(fields: dict[bytes, bytes]) -> None:
    if fields.get(b"content-transfer-encoding", b"binary").lower() not in _PLAIN:
        raise BadRequestError("body: Content-Transfer-Encoding of a part must be binary; send its bytes as they are")
    if _NESTED.match(fields.get(b"content-type", b"")):
        raise BadRequestError("body: a part of the form must not have parts itself; send each file as its own part")


def _check_model(fields: dict[bytes, bytes], *, is_file: bool) -> None:
    if is_file:
        raise BadRequestError("model: must be a text and not a file; leave out its filename", MODEL)
    if not _TEXT.fullmatch(fields.get(b"content-type", b"text/plain")):
        raise BadRequestError("model: must be a text in UTF-8; leave out the Content-Type of its part", MODEL)
