"""Forms (multipart/form-data): refused, or read alike by the parsers behind the gateway, however they are cut.

The first byte is the size of the pieces.
"""

import warnings
from typing import Final

from gateway.bodies.form_reader import FormReader, model_part
from gateway.bodies.parameters import BadRequestError
from support.builders.bounds import bounded
from support.form_parsers import PARSERS, readings
from support.fuzz.refusals import explained

TYPE: Final = b"multipart/form-data; boundary=BoUnDaRy"
WORDS: Final = (
    "\r\n", "\r\n\r\n", "\r\n--BoUnDaRy\r\n", "\r\n--BoUnDaRy--", "--BoUnDaRy", "Content-Disposition: form-data; ",
    'name="model"', "name=model", 'name="x"', "name*=utf-8''model", 'filename="a"', 'filename="a; b"', "; ", "chat",
    'filename="a\\"b"', "filename*=utf-8''a", "Content-Type: text/plain; charset=utf-8", "Content-Length: 4",
    "Content-Type: multipart/mixed; boundary=Y", "Content-Transfer-Encoding: base64", "_charset_", "%6dodel", "[]",
    "\\", '"', "\0",
)  # fmt: skip


def check(data: bytes) -> None:
    """The gateway refuses the form, or each parser reads the one model in what goes on to the engine."""
    body, size = data[1:], data[0] if data else 0
    with bounded():
        passed = _passed_on(body, size or 1)
    for other in (len(body), 1):
        assert _passed_on(body, other or 1) == passed, "the cuts make a difference"
    if passed is None:
        return
    with warnings.catch_warnings(action="ignore"):
        read = _readings(passed)
    assert len({tuple(models) for models in read.values()}) == 1, read
    assert all(len(models) == 1 for models in read.values()), read


def _passed_on(body: bytes, size: int) -> bytes | None:
    """What an engine gets; None: the gateway refuses the form."""
    try:
        reader = FormReader(TYPE)
        for at in range(0, len(body), size):
            reader.feed(body[at : at + size])
        reader.end()
    except BadRequestError as error:
        explained(error)
        return None
    start, end = reader.span
    assert reader.model is not None
    return body[:start] + model_part(reader.model) + body[end:]


def _readings(body: bytes) -> dict[str, list[bytes]]:
    """Without that of a parser that refuses the form."""
    try:
        return readings(TYPE, body)
    except ValueError:
        return {name: parse(TYPE, body) for name, parse in PARSERS.items() if name != "aiohttp"}
