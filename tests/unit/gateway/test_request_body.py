"""The model of a request: found exactly once, replaced without touching another byte, or refused with a clear word."""

import json
import random
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from gateway.bodies import request_body
from gateway.bodies.request_body import BadRequestError, check_charset, read_asked

DEEP = '"messages": [{"model": "inner", "content": "say \\"model\\": \\"x\\""}], "tool": {"model": {"model": 1}}'


@pytest.mark.parametrize(
    "body",
    [
        '{"model": "m"}',
        '{ "stream":true ,\n "model"  :\t"m" , "f": 1.10, "big": 123456789012345678901234567890 }',
        f'{{{DEEP}, "model": "m"}}',
        f'{{"model": "m", {DEEP}}}',
        '{"a": "model", "model": "m", "b": ["model", "model"]}',
        '{"\\u006dode\\u006C": "m", "x": {"model": "n"}}',
        '{"x\\"model": "n", "model": "m", "key-0": 1}',
        '{"é": "ü", "model": "m"}',
    ],
)
def test_the_top_level_model_alone_is_replaced(body: str) -> None:
    asked = read_asked(body.encode())
    assert asked.model == "m"
    assert asked.with_model(None) == asked.with_model("m") == (body.encode(),), "no byte changes"
    start, end = asked.span
    assert body.encode()[start:end] == b'"m"'
    other = b"".join(asked.with_model('/a "b"'))
    assert other == body.encode()[:start] + b'"/a \\"b\\""' + body.encode()[end:]
    assert json.loads(other) == {**json.loads(body), "model": '/a "b"'}


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        (b"", "", "not valid JSON"),
        (b"{", "", "not valid JSON"),
        (b"[]", "", "must be a JSON object"),
        (b'"model"', "", "must be a JSON object"),
        (b"{}", "model", "is required"),
        (b'{"model": 7}', "model", "is required"),
        (b'{"model": ""}', "model", "is required"),
        (b'{"x": {"model": "m"}}', "model", "is required"),
        (b'\xef\xbb\xbf{"model": "m"}', "", "byte order mark"),
        ('{"model": "m"}'.encode("utf-16"), "", "not valid JSON"),
        (b'{"model": "m\xff"}', "", "not valid JSON"),
        (b'{"model": "m", "t": NaN}', "", "not valid JSON"),
        (b'{"model": "m", "t": Infinity}', "", "not valid JSON"),
        (b'{"model": "m", "s": "\\ud800"}', "", "not valid JSON"),
        (b'{"model": "m"} {}', "", "not valid JSON"),
        (b'{"model": "m", "d": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "", "not valid JSON"),
        (b'{"model": "a", "model": "b"}', "model", "2 times"),
        (b'{"model": "a", "mod\\u0065l": "b"}', "model", "2 times"),
        (b'{"model": {"x": 1}, "y": {"model": 1}, "model": "b"}', "model", "2 times"),
    ],
)
def test_other_bodies_are_refused_with_a_word(body: bytes, param: str, said: str) -> None:
    with pytest.raises(BadRequestError, match=said) as refused:
        read_asked(body)
    assert refused.value.param == param


LONG = '"messages": ["' + 5_000 * "long " + '"]'


@pytest.mark.parametrize(
    ("body", "times"),
    [
        (f'{{"model": "m", {LONG}}}', 1),
        (f'{{{LONG}, "model": "m"}}', 1),
        (f'{{{LONG}, "model": "m", "x": {{{LONG}}}}}', 1),
        (f'{{"x": {{"model": "n"}}, {LONG}, "model": "m"}}', 1),
        (f'{{"x": {{"model": "n"}}, {LONG}, "model": "m", "y": {{{LONG}}}}}', 1),
        (f'{{"model": "m", {LONG}, "model": "n", "x": {{{LONG}}}}}', 2),
        (f'{{{LONG}, "\\u006dodel": "m", "x": {{{LONG}}}, "model": "n"}}', 2),
    ],
)
def test_the_key_is_found_and_counted_anywhere_in_a_long_body(body: str, times: int) -> None:
    if times == 1:
        for pieces in cut(body.encode()):
            asked = read_asked(*pieces)
            assert b"".join(asked.with_model(None)) == body.encode()
            assert json.loads(b"".join(asked.with_model("x"))) == {**json.loads(body), "model": "x"}
    else:
        for pieces in cut(body.encode()):
            with pytest.raises(BadRequestError, match=f"got it {times} times"):
                read_asked(*pieces)


def cut(body: bytes) -> list[tuple[bytes, ...]]:
    """The body whole, and cut at several places, also within the key and within its value."""
    at = (
        1,
        2,
        len(body) // 2,
        *(place + more for place in (body.find(b"model"), body.rfind(b"model")) for more in (1, 8)),
    )
    every = tuple(body[start : start + 100] for start in range(0, len(body), 100))
    return [(body,), every, *((body[:place], body[place:]) for place in at), (body[:9], body[9:-9], body[-9:])]


@pytest.mark.parametrize("body", [b'{"model": "m", "x": [1,]}', b'{"x": {"model": "m"}}', b"[]", b'{"model": 7}'])
def test_a_refused_body_that_came_in_pieces_is_parsed_as_often_as_a_whole_one(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def loads(text: bytes) -> object:
        parsed.append(text)
        return json.loads(text)

    monkeypatch.setattr(request_body, "orjson", SimpleNamespace(loads=loads, JSONDecodeError=json.JSONDecodeError))
    times = []
    many = tuple(bytes([one]) for one in body * 4)
    for pieces in ((body,), (body[:9], body[9:]), (body[:3], body[3:7], body[7:]), many):
        parsed.clear()
        with pytest.raises(BadRequestError):
            read_asked(*pieces)
        times.append(len(parsed))
    assert max(times) <= times[0] <= 2


@pytest.mark.parametrize("pieces", [(), (b"",), (b"", b""), (b" ", b"\n")])
def test_an_empty_body_is_refused(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(BadRequestError, match="not valid JSON"):
        read_asked(*pieces)


def test_a_long_body_stays_in_its_pieces() -> None:
    pieces = (b'{"model": "m", "x": "' + b"a" * 9_000, b"b" * 9_000, b'c", "stream": true}\n')
    asked = read_asked(*pieces)
    assert all(one is other for one, other in zip(asked.with_model(None), pieces, strict=True))
    assert asked.with_model("n") == (pieces[0].replace(b'"m"', b'"n"'), *pieces[1:])
    turned = tuple(reversed((b'c", "model": "m"}', *pieces[1:2], b'{"x": "')))
    assert read_asked(*turned).with_model("n") == (*turned[:2], b'c", "model": "n"}')


@pytest.mark.parametrize("at", range(4))
def test_a_byte_order_mark_is_refused_also_where_it_comes_in_pieces(at: int) -> None:
    body = b'\xef\xbb\xbf{"model": "m"}'
    with pytest.raises(BadRequestError, match="byte order mark"):
        read_asked(body[:at], body[at:])


def test_random_bodies_are_read_as_by_a_parser_that_sees_all_pairs() -> None:
    dice = random.Random(3)  # noqa: S311 - repeatable
    words = ['"model"', '"\\u006dodel"', '"x\\"model"', '"mode"', '"x"', '"model "', '"say \\"model\\": 1"']

    def value(depth: int) -> str:
        kind = dice.random()
        if kind < 0.3 and depth:
            return "{" + ", ".join(f"{dice.choice(words)} : {value(depth - 1)}" for _ in range(dice.randrange(4))) + "}"
        return "[" + value(depth - 1) + "]" if kind < 0.4 and depth else dice.choice([*words, "1", '""'])

    outcomes: Counter[bool] = Counter()
    for _ in range(3_000):
        body = "{" + ", ".join(f"{dice.choice(words)}:{value(2)}" for _ in range(dice.randrange(1, 4))) + "}"
        models = [one for name, one in json.loads(body, object_pairs_hook=list) if name == "model"]
        good = len(models) == 1 and isinstance(models[0], str) and models[0] != ""
        outcomes[good] += 1
        if good:
            assert read_asked(body.encode()).model == models[0], body
        else:
            with pytest.raises(BadRequestError):
                read_asked(body.encode())
    assert min(outcomes.values()) > 500


def test_many_nested_keys_are_bounded_and_cheap() -> None:
    body = b'{"x": [' + b",".join([b'{"model": 1}'] * 9_000) + b'], "model": "m"}'
    began = time.process_time()
    assert read_asked(body).model == "m"
    assert time.process_time() - began < 1.0
    with pytest.raises(BadRequestError, match="more than 10000 keys"):
        read_asked(b'{"x": [' + b",".join([b'{"model": 1}'] * 11_000) + b'], "model": "m"}')


@pytest.mark.parametrize("content_type", ["", "application/json", 'x/json; charset="UTF-8"', "x/y; charset=ascii"])
def test_utf_8_is_read(content_type: str) -> None:
    check_charset(content_type)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json; charset=latin-1",
        'application/json;charset="utf-16"',
        "application/json; charset=utf-8; charset=utf-16",
    ],
)
def test_other_charsets_are_refused(content_type: str) -> None:
    with pytest.raises(BadRequestError, match="charset must be utf-8"):
        check_charset(content_type)


@pytest.mark.parametrize("dashes", [1_000, 400_000])
def test_no_text_of_a_client_makes_the_search_of_top_level_keys_long(dashes: int) -> None:
    body = b'{"a":{"model":"x"},"b":"key-%b","model":"one"}' % (b"-" * dashes)
    began = time.process_time()
    assert read_asked(body).model == "one"
    assert time.process_time() - began < 2.0
