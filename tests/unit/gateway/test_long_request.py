"""A long body is read in steps: the same verdict as of a parser that reads it at once, whatever is in it."""

import json
import random
import string
from collections.abc import Iterator
from typing import Any
from unittest import mock

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.bodies import long_body, long_request
from gateway.bodies.json_cuts import MOST_DEPTH
from gateway.bodies.long_body import LongBody, NotJsonError
from gateway.bodies.long_request import steps_to_asked
from gateway.bodies.request_body import Asked, BadRequestError, answer_size, read_asked
from gateway.usage.stream_usage import options_span, with_usage_asked

BLOCKS = st.sampled_from((16, 33, 64, 150, 300))


def read_long(body: bytes, block: int = 64, piece: int = 50) -> Asked:
    pieces = [body[start : start + piece] for start in range(0, len(body), piece)]
    with mock.patch.object(long_body, "BLOCK_BYTES", block), mock.patch.object(long_body, "_MOST_KEPT", 16 * block):
        steps = steps_to_asked(pieces)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]


def is_json(body: bytes, block: int) -> bool:
    try:
        with mock.patch.object(long_body, "BLOCK_BYTES", block):
            for _ in LongBody([body]).parts():
                pass
    except NotJsonError:
        return False
    return True


def parses(body: bytes) -> bool:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


KEYS = ['"model"', '"\\u006dodel"', '"x\\"model"', '"stream"', '"stream_options"', '"x"', '""', '"model "', '"\\\\"']
SCALARS = [
    *("0", "-1.5e3", "1e999", "12345678901234567890123", "true", "false", "null", "NaN", '""', '"m"', '"a,b"', '"[{"'),
    *('"\\\\"', '"\\""', '"\\ud83d\\ude00"', '"\\ud800"', '"\\\\\\\\\\""', '"é😀ü"', '"\\u00e9"'),
]  # fmt: skip


def long_strings() -> st.SearchStrategy[str]:
    parts = ["a", "long text ", ",", "\\\\", '\\"', "\\n", "\\ud83d\\ude00", "\\u0041", "é", "😀", "[{]}"]
    return st.lists(st.sampled_from(parts), min_size=1, max_size=4).flatmap(
        lambda some: st.integers(1, 250).map(lambda times: '"' + "".join(some) * times + '"')
    )


def values() -> st.SearchStrategy[str]:
    leaves = st.one_of(st.sampled_from(SCALARS), long_strings())
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=6).map(lambda each: "[" + ",".join(each) + "]"),
            st.lists(inner, max_size=6).map(lambda each: "[ " + " ,\n".join(each) + "\t]"),
            pairs(inner, max_size=5),
        ),
        max_leaves=12,
    )


def pairs(inner: st.SearchStrategy[str], max_size: int) -> st.SearchStrategy[str]:
    pair = st.tuples(st.sampled_from(KEYS), st.sampled_from([":", " : "]), inner).map("".join)
    return st.lists(pair, max_size=max_size).map(lambda each: "{" + ", ".join(each) + "}")


def harms() -> st.SearchStrategy[tuple[float, int, bytes]]:
    """Where a body is harmed, how many bytes go there, and which come instead."""
    instead = [
        b"",
        b",",
        b'"',
        b"\\",
        b"[",
        b"]",
        b"{",
        b"}",
        b":",
        b"0",
        b" ",
        b"\x01",
        b"\xff",
        b"\xc3",
        b"u00",
        b"\x02",
    ]
    return st.tuples(st.floats(0, 1), st.integers(0, 3), st.sampled_from(instead))


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=values(), harm=st.lists(harms(), max_size=2), block=BLOCKS)
@example(body='"\\u00' + 200 * "a" + '41"', harm=[], block=16)
@example(body='["' + 300 * "\\\\" + '"]', harm=[], block=16)
@example(body="[,1]", harm=[], block=16)
@example(body="[1,]", harm=[], block=16)
@example(body='{"a":1,}', harm=[], block=16)
@example(body="1,2", harm=[], block=16)
@example(body="[1}", harm=[], block=16)
@example(body=1025 * "[" + 1025 * "]", harm=[], block=64)
@example(body=1024 * "[" + "0,0" + 1024 * "]", harm=[], block=64)
@example(body="[1" + 100 * " " + "2]", harm=[], block=16)
def test_what_is_json_is_as_for_a_parser_at_once(body: str, harm: list[tuple[float, int, bytes]], block: int) -> None:
    text = body.encode()
    for where, gone, instead in harm:
        at = int(where * len(text))
        text = text[:at] + instead + text[at + gone :]
    assert is_json(text, block) == parses(text)


def verdict(body: bytes) -> tuple[str, Any]:
    """What an independent reader, which sees all pairs, makes of a body."""
    if not parses(body):
        return "not valid JSON", None
    found = json.loads(body, object_pairs_hook=lambda each: ("object", each))
    if not (isinstance(found, tuple) and found[0] == "object"):
        return "must be a JSON object", None
    models = [value for name, value in found[1] if name == "model"]
    if not models or not isinstance(models[-1], str) or not models[-1]:
        return "is required", None
    if len(models) > 1:
        return f"got it {len(models)} times", None
    content = orjson.loads(body)
    return "", (models[0], {name: content[name] for name in ("stream", "stream_options") if name in content})


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """What counts of options: whether they are `True`, objects, and what these have of usage."""

    def gist(content: dict[str, Any]) -> Any:
        options = content.get("stream_options")
        inner = options.get("include_usage") if isinstance(options, dict) else None
        return content.get("stream") is True, type(options), inner

    return gist(one) == gist(other)  # type: ignore[no-any-return]


def bodies() -> st.SearchStrategy[str]:
    names = st.sampled_from(['"m"', '"chat"', '"a, b"', "7", '""', "{}", '{"model": "n"}'])
    mine = st.tuples(st.sampled_from(['"model"', '"\\u006dodel"']), names).map(": ".join)
    options = st.sampled_from(
        ["{}", "null", '{"include_usage": true}', '{"include_usage": false, "x": [1, 2, 3]}', "[1, {}]"]
    )
    said = st.one_of(
        st.just('"stream": true'), st.just('"stream": [1, 2]'), options.map(lambda text: f'"stream_options": {text}')
    )
    other = st.tuples(st.sampled_from([*KEYS, '"messages"', '"max_tokens"', '"n"']), values()).map(": ".join)
    return st.lists(st.one_of(mine, mine, said, other, other), max_size=8).map(lambda each: "{" + ", ".join(each) + "}")


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies(), block=BLOCKS, piece=st.sampled_from((1, 7, 50, 1000)))
def test_the_verdict_and_the_place_of_the_model_are_as_for_a_parser_at_once(body: str, block: int, piece: int) -> None:
    text = body.encode()
    error, said = verdict(text)
    if error:
        with pytest.raises(BadRequestError, match=error):
            read_long(text, block, piece)
        return
    asked = read_long(text, block, piece)
    assert asked.model == said[0]
    assert same(dict(asked.options), said[1])
    assert asked.answer == answer_size(orjson.loads(text)) == read_asked(text).answer
    assert b"".join(asked.with_model(None)) == text
    before = orjson.loads(text)
    assert orjson.loads(b"".join(asked.with_model("other"))) == {**before, "model": "other"}
    start, end = read_asked(text).span
    assert b"".join(asked.with_model("o")) == text[:start] + b'"o"' + text[end:]
    if asked.options_piece is not None:
        assert orjson.loads(asked.body[asked.options_piece]) == before["stream_options"]


def letters(count: int) -> Iterator[str]:
    dice = random.Random(5)  # noqa: S311 - repeatable
    return (dice.choice(string.ascii_letters) for _ in range(count))


def test_a_long_string_is_not_kept_whole() -> None:
    body = b'{"model": "m", "x": "' + "".join(letters(10_000)).encode() + b'", "y": 1}'
    with mock.patch.object(long_body, "BLOCK_BYTES", 100):
        parts = [part for part in LongBody([body]).parts() if part is not None]
    assert max(len(part.text) for part in parts) < 1_000


def test_a_byte_order_mark_is_refused() -> None:
    for piece in (1, 2, 3, 50):
        with pytest.raises(BadRequestError, match="byte order mark"):
            read_long(b'\xef\xbb\xbf{"model": "m"}', piece=piece)


@pytest.mark.parametrize("junk", [b"\x00", b"\x80", b"x", b'"\x80', b'"\x01'])
def test_what_cannot_become_json_is_not_read_to_its_end(junk: bytes) -> None:
    body = b'{"x": ' + junk + junk[-1:] * 100_000
    pieces = [body[start : start + 1_000] for start in range(0, len(body), 1_000)]
    taken: list[bytes] = []

    def blocks(_: object) -> Iterator[bytes]:
        for piece in pieces:
            taken.append(piece)
            yield piece

    with mock.patch.object(long_body, "blocks", blocks), pytest.raises(NotJsonError):
        list(LongBody(pieces).parts())
    assert len(taken) < 5


def test_a_model_in_short_blocks_is_read_whole() -> None:
    """Pieces that do not fit together make short blocks, and a block within a string is left out of what is parsed."""
    model = "m" * 10_400
    body = b'{"x":"%s","model":"%s","stream_options":{"k":"%s"}}' % (b"x" * 59_000, model.encode(), b"k" * 10_400)
    for first in range(59_000, 69_500, 900):
        pieces = (body[:first], body[first : first + 10_000], body[first + 10_000 :])
        steps = steps_to_asked(pieces)
        asked = None
        while asked is None:
            try:
                next(steps)
            except StopIteration as ended:
                asked = ended.value
        assert asked.model == model
        assert b"".join(asked.body) == body
        changed = with_usage_asked(asked.body, asked)
        if changed is not None:
            assert orjson.loads(b"".join(changed))["stream_options"]["k"] == "k" * 10_400


@pytest.mark.parametrize("read", [read_asked, read_long])
@pytest.mark.parametrize(
    ("opens", "closes", "levels"), [(b"[", b"]", 1), (b'[{"a": ', b"}]", 2), (b'["[{\\"[", ', b"]", 1)]
)
@pytest.mark.parametrize("wanted", [100, 198, 200, 260, 1300, 100_000])
def test_a_body_is_refused_that_is_deeper_than_engines_parsers_go(
    read: Any, opens: bytes, closes: bytes, levels: int, wanted: int
) -> None:
    """Their failure would count as theirs, and end a rollout."""
    times = wanted // levels
    deep = opens * times + b"1" + closes * times
    body = b'{"model": "m", "flat": [%b{}], "x": {"a": %b}}' % (b"{}, " * 300, deep)
    if wanted + 2 <= MOST_DEPTH:
        assert read(body).model == "m"
    else:
        with pytest.raises(BadRequestError, match=r"nested more than 200 levels|depth limit"):
            read(body)


@pytest.mark.parametrize("read", [read_asked, read_long])
@pytest.mark.parametrize("before", ["", '"x": [1, 2], '])
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rid", '"mine"', "X-Request-Id"),
        ("request_id", '"mine"', "X-Request-Id"),
        ("r\\u0069d", '["a", "b"]', "X-Request-Id"),
        ("lora_path", '"other"', "by their names"),
        ("lora", '[{"id": 0, "scale": 1}]', "by their names"),
        ("background", "true", "keep the connection open"),
        ("background", "1", "keep the connection open"),
        ("session_params", "{}", "whole conversation"),
        ("kv_transfer_params", '{"remote_host": "h"}', "chooses where"),
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
def test_what_is_for_engines_operators_is_refused(read: Any, before: str, name: str, value: str, said: str) -> None:
    body = f'{{{before}"{name}": {value}, "model": "m", "messages": ["rid"]}}'.encode()
    if not said:
        assert read(body).model == "m"
        return
    with pytest.raises(BadRequestError, match=said) as refused:
        read(body)
    assert refused.value.param == orjson.loads(f'"{name}"')


@pytest.mark.parametrize(
    ("options", "looks"),
    [
        (b'"stream_options": {}, "stream": true', 1),
        (b'"stream": true, "stream_options": {"include_usage": false}', 1),
        (b'"stream_options": {"include_usage": true}, "stream": true', 0),
        (b'"stream_options": {}, "stream": false', 0),
        (b'"stream_options": {}', 0),
        (b'"stream_options": {}, "stream": true, "stream_options": {}', 0),
        (b'"stream": true', 0),
    ],
)
@pytest.mark.parametrize("fill", [0, 400])
def test_options_are_looked_for_once_and_only_where_they_are_written_anew(
    options: bytes, looks: int, fill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[bytes] = []

    def looked(text: bytes) -> tuple[int, int] | None:
        texts.append(text)
        return options_span(text)

    monkeypatch.setattr(long_request, "options_span", looked)
    numbers = b"0, " * fill
    asked = read_long(b'{"x": [%b0], "model": "m", %b, "y": [%b0]}' % (numbers, options, numbers))
    assert len(texts) == looks
    assert (asked.options_piece is not None) == bool(looks)
    assert len(b"".join(texts)) < 1_000
