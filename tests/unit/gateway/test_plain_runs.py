"""Long runs of plain characters are left out of a text, and what remains is JSON just where the whole is."""

import json

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.bodies import plain_runs
from gateway.bodies.plain_runs import LEFT_OUT, condensed
from gateway.bodies.request_body import BadRequestError, read_asked

RUN = "plain " * 20


def parses(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def texts() -> st.SearchStrategy[bytes]:
    bits = [
        RUN,
        RUN,
        "1" * 90,
        " " * 90,
        '"',
        "\\",
        "\\n",
        "\\u00",
        "\\ud83d",
        "é",
        "[",
        "]",
        ",",
        "\n",
        "\x7f",
        '"a": ',
    ]
    some = st.lists(st.sampled_from(bits), max_size=8).map("".join)
    whole = st.lists(some.map(json.dumps), max_size=3).map(lambda each: "[" + ",".join(each) + "]")
    return st.one_of(some.map(lambda text: f'["{text}"]'), some, whole).map(str.encode)


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=texts())
@example(text=b'["\\' + RUN.encode() + b'"]')
@example(text=b'["\\u00' + RUN.encode() + b'41"]')
@example(text=b"[1" + b"1" * 200 + b"]")
@example(text=b"[1" + b" " * 200 + b"1]")
@example(text=b"[" + RUN.encode() + b"]")
@example(text=b'["\xc3' + RUN.encode() + b'"]')
def test_what_remains_is_json_only_where_the_whole_is(text: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_runs, "_WINDOW", 16)
        short = b"".join(condensed(text, 0, len(text)))
    assert parses(text) or not parses(short)


def test_a_long_run_is_left_out_and_what_is_beside_it_stays() -> None:
    text = b'["' + b"a" * 100_000 + b'\\n", 1, "' + b"b" * 3_000 + b'"]'
    short = b"".join(condensed(text, 0, len(text)))
    assert orjson.loads(short) == [f" \n{LEFT_OUT}\n", 1, "b" * 3_000]
    assert b"".join(condensed(text, 5, 50)) == text[5:50]


@pytest.mark.parametrize("odd", [b"\x00", b"\x1f", b"\n", b"\x80", b"\xff"])
def test_a_run_with_an_odd_byte_stays(odd: bytes) -> None:
    text = b'["' + b"a" * 50_000 + odd + b"a" * 50_000 + b'"]'
    assert b"".join(condensed(text, 0, len(text))) == text


LONG = "a" * 50_000


def test_a_long_model_and_long_options_are_read_as_they_are() -> None:
    body = {"model": LONG, "stream": True, "stream_options": {"x": LONG}}
    for asked in (read_asked(json.dumps(body).encode()), read_asked(*pieces(json.dumps(body).encode()))):
        assert (asked.model, dict(asked.options)) == (LONG, {name: body[name] for name in ("stream", "stream_options")})


def pieces(body: bytes) -> list[bytes]:
    return [body[start : start + 30_000] for start in range(0, len(body), 30_000)]


@pytest.mark.parametrize("harm", ["\x01", "\\x", '"', "\\"])
def test_a_body_with_a_fault_behind_a_long_run_is_refused(harm: str) -> None:
    body = f'{{"model": "m", "x": "{LONG}{harm}{LONG}"}}'.encode()
    for some in ([body], pieces(body)):
        with pytest.raises(BadRequestError, match="not valid JSON"):
            read_asked(*some)
