"""A JSON body: its model is found exactly once, other values pass unchanged, and odd bodies are refused."""

import json
import math
import random
import time
from collections import Counter

import msgspec
import orjson
import pytest

from gateway.bodies.child import answered
from gateway.bodies.json_body import MOST_DEPTH, JsonBody, read_json
from gateway.bodies.parameters import BadRequestError, check_charset

DEEP = '"messages": [{"model": "inner", "content": "say \\"model\\": \\"x\\""}], "tool": {"model": {"model": 1}}'
LONG = '"messages": ["' + 5_000 * "long " + '"]'


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
        f'{{"x": {{"model": "n"}}, {LONG}, "model": "m", "y": {{{LONG}}}}}',
    ],
)
def test_the_top_level_model_alone_is_replaced(body: str) -> None:
    text = body.encode()
    parameters = read_json(text)
    assert parameters.model == "m"
    assert JsonBody(parameters, text).with_values({}) == (text,), "no byte changes"
    (other,) = JsonBody(parameters, text).with_values({"model": '/a "b"'})
    assert json.loads(other) == {**json.loads(body), "model": '/a "b"'}
    assert other.count(b"1.10") == text.count(b"1.10"), "numbers stay as they are written"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"", "", "not valid JSON"),
        (b" \n", "", "not valid JSON"),
        (b"{", "", "not valid JSON"),
        (b"[]", "", "must be a JSON object"),
        (b'"model"', "", "must be a JSON object"),
        (b"[1,]", "", "not valid JSON"),
        (b"{}", "model", "is required"),
        (b'{"model": 7}', "model", "is required"),
        (b'{"model": ""}', "model", "is required"),
        (b'{"x": {"model": "m"}}', "model", "is required"),
        (b'{"model": 7, "x": [1,]}', "", "not valid JSON"),
        (b'\xef\xbb\xbf{"model": "m"}', "", "byte order mark"),
        ('{"model": "m"}'.encode("utf-16"), "", "not valid JSON"),
        (b'{"model": "m\xff"}', "", "not valid JSON"),
        (b'{"model": "m", "s": "\xed\xa0\x80"}', "", "not valid JSON"),
        (b'{"model": "m", "s": "\xc0\xaf"}', "", "not valid JSON"),
        (b'{"model": "m", "\xff": 1}', "", "not valid JSON"),
        (b'{"model": "m", "t": NaN}', "", "not valid JSON"),
        (b'{"model": "m", "t": Infinity}', "", "not valid JSON"),
        (b'{"model": "m", "t": 1e999}', "", "not valid JSON"),
        (b'{"model": "m", "t": -1E+999}', "", "not valid JSON"),
        (b'{"model": "m", "t": ' + b"9" * 400 + b"}", "", "not valid JSON"),
        (b'{"model": "m", "t": ' + b"9" * 250 + b"e99}", "", "not valid JSON"),
        (b'{"model": "m", "t": 01}', "", "not valid JSON"),
        (b'{"model": "m", "s": "\\ud800"}', "", "not valid JSON"),
        (b'{"model": "m", "s": "\\udc00x"}', "", "not valid JSON"),
        (b'{"model": "m", "s": "\n"}', "", "not valid JSON"),
        (b'{"model": "m"} {}', "", "not valid JSON"),
        (b'{"model": "m"}\x00', "", "not valid JSON"),
        (b'{"model": "m", "d": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "", "not valid JSON"),
        (b'{"model": "a", "model": "b"}', "model", "2 times"),
        (b'{"model": "a", "mod\\u0065l": "b"}', "model", "2 times"),
        (b'{"model": {"x": 1}, "y": {"model": 1}, "model": "b"}', "model", "2 times"),
        (f'{{"model": "m", {LONG}, "\\u006dodel": "n", "x": {{{LONG}}}}}'.encode(), "model", "2 times"),
    ],
)
def test_other_bodies_are_refused_with_a_reason(body: bytes, param: str, message: str) -> None:
    with pytest.raises(BadRequestError, match=message) as refused:
        read_json(body)
    assert refused.value.param == param


@pytest.mark.parametrize("value", ["1e308", "1e-999", "9" * 300, '"1e999"', '"' + "9" * 400 + '"', '"\\\\ud800"'])
def test_finite_numbers_and_texts_that_look_odd_pass(value: str) -> None:
    assert read_json(f'{{"model": "m", "x": [{value}]}}'.encode()).model == "m"


def test_great_numbers_are_infinite_as_for_a_parser() -> None:
    dice = random.Random(11)  # noqa: S311 - repeatable

    def digits(most: int) -> str:
        return str(dice.randrange(1, 10)) + "".join(dice.choices("0123456789", k=dice.randrange(most)))

    outcomes: Counter[bool] = Counter()
    for _ in range(3_000):
        fraction = f".{digits(250)}" if dice.random() < 0.5 else ""
        exponent = f"{dice.choice('eE')}{dice.choice(['', '+', '-'])}{'0' * dice.choice([0, 0, 3, 250])}{digits(3)}"
        number = dice.choice(["", "-"]) + digits(dice.choice([3, 320])) + fraction + dice.choice(["", exponent])
        infinite = math.isinf(float(number))
        outcomes[infinite] += 1
        body = f'{{"model": "m", "e": [true, {number}, 1e5], "x": {number}}}'.encode()
        if infinite:
            with pytest.raises(BadRequestError, match="infinite"):
                read_json(body)
        else:
            assert read_json(body).model == "m", number
    assert min(outcomes.values()) > 300


@pytest.mark.parametrize("great", [b"1e100", b"0." + b"1" * 300])
def test_a_great_number_does_not_make_the_read_of_others_slow(great: bytes) -> None:
    """The factor was 20 and more where it had all numbers parsed. In seconds of the processor."""

    def fastest(last: bytes) -> float:
        body = b'{"model": "m", "x": [%b%b]}' % (b"1," * 400_000, last)
        took = []
        for _ in range(5):
            began = time.process_time()
            read_json(body)
            took.append(time.process_time() - began)
        return min(took)

    assert fastest(great) < 6 * fastest(b"1")


@pytest.mark.parametrize("great", ["1e100", "1" * 200, "0." + "1" * 200])
def test_great_numbers_are_few(great: str) -> None:
    assert read_json(f'{{"model": "m", "x": [{", ".join([great] * 1_000)}]}}'.encode()).model == "m"
    with pytest.raises(BadRequestError, match="more than 1000 numbers"):
        read_json(f'{{"model": "m", "x": [{", ".join([great] * 1_001)}]}}'.encode())


WORDS = ['"model"', '"\\u006dodel"', '"x\\"model"', '"mode"', '"x"', '"model "', '"say \\"model\\": 1"']


def test_random_bodies_are_read_as_by_a_parser_that_reports_all_pairs() -> None:
    dice = random.Random(3)  # noqa: S311 - repeatable

    def value(depth: int) -> str:
        kind = dice.random()
        if kind < 0.3 and depth:
            return "{" + ", ".join(f"{dice.choice(WORDS)} : {value(depth - 1)}" for _ in range(dice.randrange(4))) + "}"
        return "[" + value(depth - 1) + "]" if kind < 0.4 and depth else dice.choice([*WORDS, "1", '""'])

    outcomes: Counter[bool] = Counter()
    for _ in range(3_000):
        body = "{" + ", ".join(f"{dice.choice(WORDS)}:{value(2)}" for _ in range(dice.randrange(1, 4))) + "}"
        models = [one for name, one in json.loads(body, object_pairs_hook=list) if name == "model"]
        good = len(models) == 1 and isinstance(models[0], str) and models[0] != ""
        outcomes[good] += 1
        if good:
            assert read_json(body.encode()).model == models[0], body
        else:
            with pytest.raises(BadRequestError):
                read_json(body.encode())
    assert min(outcomes.values()) > 500


SCALARS = [b"0", b"-1.5e3", b"1e999", b"1e400", b"NaN", b'"a,b"', b'"\\""', b'"\\ud83d\\ude00"', b'"\\ud800"', b'"[{"']
HARMS = [b"", b",", b'"', b"\\", b"[", b"]", b"{", b"}", b":", b"0", b" ", b"\x01", b"\xff", b"\xc3", b"u00", b"e"]


def test_a_body_is_json_for_the_gateway_as_for_a_strict_parser() -> None:
    """Both refuse the same bodies, whatever single byte is harmed."""
    dice = random.Random(7)  # noqa: S311 - repeatable
    outcomes: Counter[bool] = Counter()
    for _ in range(20_000):
        values = b", ".join(dice.choice(SCALARS) for _ in range(dice.randrange(4)))
        text = b'{"model": "m", "x": [%b], "y": {"\\u00e9": %b}}' % (values, dice.choice(SCALARS))
        at = dice.randrange(13, len(text))
        text = text[:at] + dice.choice(HARMS) + text[at + dice.randrange(3) :]
        try:
            orjson.loads(text)
        except orjson.JSONDecodeError:
            outcomes[False] += 1
            with pytest.raises(BadRequestError, match="JSON"):
                read_json(text)
        else:
            outcomes[True] += 1
            assert read_json(text).model == "m", text
    assert min(outcomes.values()) > 1000


@pytest.mark.parametrize(
    ("opens", "closes", "levels"), [(b"[", b"]", 1), (b'[{"a": ', b"}]", 2), (b'["[{\\"[", ', b"]", 1)]
)
@pytest.mark.parametrize("wanted", [100, 198, 200, 260, 1300, 100_000])
def test_a_body_is_refused_that_is_deeper_than_engines_parsers_go(
    opens: bytes, closes: bytes, levels: int, wanted: int
) -> None:
    """Their failure would count as theirs, and end a rollout."""
    times = wanted // levels
    deep = opens * times + b"1" + closes * times
    body = b'{"model": "m", "flat": [%b{}], "x": {"a": %b}}' % (b"{}, " * 300, deep)
    if wanted + 2 <= MOST_DEPTH:
        assert read_json(body).model == "m"
    else:
        with pytest.raises(BadRequestError, match="nested more than 200 levels"):
            read_json(body)


@pytest.mark.parametrize("before", ["", '"x": [1, 2], '])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rid", '"mine"', "X-Request-Id"),
        ("request_id", '"mine"', "X-Request-Id"),
        ("r\\u0069d", '["a", "b"]', "X-Request-Id"),
        ("lora_path", '"other"', "by their names"),
        ("lora", '[{"id": 0, "scale": 1}]', "by their names"),
        ("background", "true", "keep the connection open"),
        ("background", "1", "keep the connection open"),
        ("session_params", "{}", "whole conversation"),
        ("kv_transfer_params", '{"remote_host": "h", "remote_port": 1, "x": "' + "x" * 100 + '"}', "chooses where"),
        ("data_parallel_rank", "0", "chooses where"),
        ("background", "false", ""),
        ("background", '"true"', "keep the connection open"),
        ("background", '"transparent"', ""),
        ("rid", "null", ""),
        ("id_slot", "-1", ""),
        ("id_slot", "0", "chooses where"),
        ("lora", "[]", ""),
        ("Rid", '"mine"', ""),
        ("metadata", '{"rid": "x", "background": true}', ""),
    ],
)
def test_fields_for_engines_operators_are_refused(before: str, name: str, value: str, message: str) -> None:
    body = f'{{{before}"{name}": {value}, "model": "m", "messages": ["rid"]}}'.encode()
    if not message:
        assert read_json(body).model == "m"
        return
    with pytest.raises(BadRequestError, match=message) as refused:
        read_json(body)
    assert refused.value.param == orjson.loads(f'"{name}"')


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m"}',
        b'{"x": 1, "model": "m", "x": 2}',
        b'{"stream": true, "stream_options": {"a": 1}, "model": "m", "n": 2}',
    ],
)
def test_a_child_reads_a_body_as_the_gateway_does(body: bytes) -> None:
    answer, rest = answered(body)
    assert answer.parameters == read_json(body)
    long, short = JsonBody(read_json(body), rest, values=answer.values), JsonBody(read_json(body), body)
    changes = ({}, {"model": "other"}, {"stream_options": {"b": 1}}, {"model": "o", "stream_options": {}})
    for changed in changes:
        assert json.loads(b"".join(long.with_values(changed))) == json.loads(b"".join(short.with_values(changed)))
    assert msgspec.json.decode(msgspec.json.encode(answer), type=type(answer)) == answer


def test_a_child_refuses_as_the_gateway_does() -> None:
    answer, rest = answered(b'{"model": "a", "model": "b"}')
    assert (answer.error, answer.param, rest) == ("model: must be given once, got it 2 times", "model", b"")


def test_many_nested_keys_cost_no_more_than_text() -> None:
    body = b'{"x": [' + b",".join([b'{"model": 1}'] * 50_000) + b'], "model": "m"}'
    began = time.process_time()
    assert read_json(body).model == "m"
    assert time.process_time() - began < 0.5


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
