"""JSON bodies: the gateway refuses a body, or every parser behind it reads the same model in what passes on.

The parsers are those of engines: the standard library's (vLLM, SGLang), pydantic's, and orjson.
"""

import json
from collections.abc import Callable
from typing import Any, Final

import orjson
import pydantic_core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bodies.json_body import JsonBody, read_json
from gateway.bodies.parameters import BadRequestError

PARSERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "json": json.loads,
    "pydantic": pydantic_core.from_json,
    "orjson": orjson.loads,
}
REFUSED: Final = None
TABLE: Final[list[tuple[str, bytes, str | None]]] = [
    ("plain", b'{"model": "m"}', "m"),
    ("two equal keys", b'{"model": "a", "model": "b"}', REFUSED),
    ("two keys of one spelling each", b'{"model": "a", "\\u006dodel": "b"}', REFUSED),
    ("an escaped key", b'{"\\u006d\\u006F\\u0064el": "m"}', "m"),
    ("an escaped value", b'{"model": "\\u006d\\ud83d\\ude00"}', "m\U0001f600"),
    ("keys of values within", b'{"x": {"model": "n"}, "model": "m", "y": [{"model": "o"}]}', "m"),
    ("two keys of another name", b'{"x": 1, "model": "m", "x": 2}', "m"),
    ("two streams", b'{"stream": false, "model": "m", "stream": true}', "m"),
    ("not a number", b'{"model": "m", "x": NaN}', REFUSED),
    ("infinity", b'{"model": "m", "x": -Infinity}', REFUSED),
    ("a number beyond floats", b'{"model": "m", "x": 1e400}', REFUSED),
    ("a number beyond floats, in digits", b'{"model": "m", "x": ' + b"9" * 400 + b"}", REFUSED),
    ("a big number", b'{"model": "m", "x": 123456789012345678901234567890}', "m"),
    ("a long fraction", b'{"model": "m", "x": 0.' + b"1" * 100_000 + b"}", "m"),
    ("a fraction of more than 1 MiB", b'{"model": "m", "x": 0.' + b"1" * 2**20 + b"}", REFUSED),
    ("a lone surrogate", b'{"model": "m", "x": "\\ud800"}', REFUSED),
    ("a lone surrogate in the model", b'{"model": "\\udc00"}', REFUSED),
    ("a surrogate in UTF-8", b'{"model": "m", "x": "\xed\xa0\x80"}', REFUSED),
    ("not UTF-8", b'{"model": "m", "x": "\xff"}', REFUSED),
    ("not UTF-8, in a key", b'{"model": "m", "\xff": 1}', REFUSED),
    ("UTF-16", '{"model": "m"}'.encode("utf-16-le"), REFUSED),
    ("a byte order mark", b'\xef\xbb\xbf{"model": "m"}', REFUSED),
    ("200 levels", b'{"model": "m", "x": ' + b"[" * 199 + b"]" * 199 + b"}", "m"),
    ("201 levels", b'{"model": "m", "x": ' + b"[" * 200 + b"]" * 200 + b"}", REFUSED),
    ("100,000 levels", b'{"model": "m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", REFUSED),
    ("bytes behind it", b'{"model": "m"} {"model": "n"}', REFUSED),
    ("a null byte behind it", b'{"model": "m"}\x00', REFUSED),
    ("blanks around it", b' \t\r\n{"model": "m"}\r\n', "m"),
    ("a comma too many", b'{"model": "m",}', REFUSED),
    ("a comment", b'{"model": "m" /* x */}', REFUSED),
    ("single quotes", b"{'model': 'm'}", REFUSED),
    ("a control character", b'{"model": "m", "x": "\x00"}', REFUSED),
    ("no object", b'[{"model": "m"}]', REFUSED),
    ("no text", b'{"model": ["m"]}', REFUSED),
    ("none", b"{}", REFUSED),
]


def passed_on(body: bytes) -> tuple[str, list[bytes]]:
    """The model that the gateway reads, and what may go to an engine: the body, and the body with another option.

    Raises:
        BadRequestError: the gateway refuses it.
    """
    parameters = read_json(body)
    changed = JsonBody(parameters, body).with_values({"stream_options": {"include_usage": True}})
    return parameters.model, [body, b"".join(changed)]


@pytest.mark.parametrize(("body", "model"), [(body, model) for _, body, model in TABLE], ids=[one[0] for one in TABLE])
def test_the_gateway_and_engines_read_the_same_model(body: bytes, model: str | None) -> None:
    if model is REFUSED:
        with pytest.raises(BadRequestError):
            passed_on(body)
        return
    read, sent = passed_on(body)
    assert read == model
    assert {parse(one)["model"] for one in sent for parse in PARSERS.values()} == {model}


def test_of_equal_keys_the_value_that_engines_take_remains() -> None:
    body = b'{"x": 1, "stream": false, "model": "m", "x": 2, "stream": true}'
    (_, (_, changed)) = passed_on(body)
    assert changed.count(b'"x"') == changed.count(b'"stream"') == 1
    for parse in PARSERS.values():
        before, after = parse(body), parse(changed)
        assert {**before, "stream_options": {"include_usage": True}} == after


TOKENS: Final = [
    *('"model"', '"\\u006dodel"', '"x"', '"a"', '"\\ud800"', '"\\\\"', "1", "1e400", "NaN", "null", "true"),
    *("{", "}", "[", "]", ",", ":", " "),
]


@given(st.lists(st.sampled_from(TOKENS), max_size=12).map("".join))
def test_no_text_is_read_otherwise_by_an_engine(inner: str) -> None:
    body = f'{{"model": "m", "y": {inner}}}'.encode()
    try:
        model, sent = passed_on(body)
    except BadRequestError:
        return
    for one in sent:
        for parse in PARSERS.values():
            assert parse(one)["model"] == model
