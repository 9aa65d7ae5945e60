"""Where long bodies are cut, and what is refused before it is read to its end."""

import random
from collections.abc import Iterator
from unittest import mock

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bodies import long_body
from gateway.bodies.json_cuts import Cut, last_cut, note_brackets
from gateway.bodies.long_body import BLOCK_BYTES, LongBody, NotJsonError

SIZE = 4 * 2**20
TOKENS = (
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b'"a"',
    b'""',
    b"1",
    b" ",
    b'"',
    b"\\",
    b'"[,{"',
    b"[" * 9,
    b" " * 9,
    b".5",
    b"e3",
)
LEAVES = (b"1", b'"a"', b'"a,b"', b'""', b"-1e3", b" 1 ", b'"[{"', b'"\\""', b'"\\\\"', b'"' + b"x" * 40 + b'"')


def refusal(body: bytes, block: int = BLOCK_BYTES) -> tuple[str, int]:
    """What a body is refused for, or an empty text; and how many blocks of it were read."""
    read = 0

    def blocks(pieces: list[bytes]) -> Iterator[bytes]:
        nonlocal read
        for one in cut_up(pieces):
            read += 1
            yield one

    cut_up = long_body.blocks
    with mock.patch.object(long_body, "BLOCK_BYTES", block), mock.patch.object(long_body, "blocks", blocks):
        try:
            for _ in LongBody([body], ("a",)).parts():
                pass
        except NotJsonError as error:
            return str(error), read
    return "", read


def parses(body: bytes) -> bool:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


def value(dice: random.Random, depth: int) -> bytes:
    kind = dice.random()
    if depth == 0 or kind < 0.3:
        return dice.choice(LEAVES)
    inner = [value(dice, depth - 1) for _ in range(dice.randint(0, 3))]
    if kind < 0.6:
        return b"[" + b",".join(inner) + b"]"
    return b"{" + b",".join(dice.choice((b'"a":', b'"b" : ')) + one for one in inner) + b"}"


@pytest.mark.parametrize("kept", [0, 40, 1_000])
def test_every_cut_leaves_the_verdict_of_a_parser(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of a byte or a few each place of a text becomes a cut."""
    monkeypatch.setattr(long_body, "_MOST_KEPT", kept)
    dice = random.Random(kept)  # noqa: S311 - repeatable
    valid = 0
    for _ in range(1_500):
        text = value(dice, dice.randint(0, 6)) if dice.random() < 0.8 else b""
        for _ in range(dice.choice((0, 1, 1, 2, 5))):
            at = dice.randint(0, len(text))
            text = text[:at] + dice.choice(TOKENS) + text[at + dice.randint(0, 2) :]
        valid += parses(text)
        for block in (1, 2, dice.randint(3, 60)):
            assert (not refusal(text, block)[0]) == parses(text), (text, block)
    assert 300 < valid < 1_200


@pytest.mark.parametrize(
    "run",
    [
        *(b"[", b"[]", b"[[]]", b"{}", b"]", b'{"a":', b'{"a" ', b'{"a":1', b'{"a":1}', b"[1", b"1]"),
        *(b'"', b'""', b'"a"', b'"a":', b'" "', b'"," ', b'"\\""', b'"' + b"a" * BLOCK_BYTES + b'"'),
        *(b":", b"1", b"1 ", b"true", b"1" + b" " * BLOCK_BYTES, b",", b",,", b"1 ,2 3,", b"\x00", b"\xff"),
    ],
)
@pytest.mark.parametrize("begin", [b"", b"[", b'{"x": ', b'{"x": [0, '])
def test_a_run_that_cannot_become_json_is_refused_early(begin: bytes, run: bytes) -> None:
    body = begin + run * (SIZE // len(run))
    said, read = refusal(body)
    assert said
    assert read <= 34, "of 128 blocks"


@pytest.mark.parametrize(
    "text",
    [
        b'"%b"' % (b"aGVsbG8h" * (SIZE // 8)),
        b'"%b"' % (b" " * SIZE),
        b'"%b"' % ("é😀".encode() * (SIZE // 6)),
        b'{"%b":"%b"}' % (b"k" * SIZE, b"v" * SIZE),
        b'{"%b" : %b"v"%b}' % (b"k" * SIZE, b" " * SIZE, b"\n" * SIZE),
        b" " * SIZE + b"1" + b"\t" * SIZE,
        b"0." + b"0" * (len(b"0") * 2**19) + b"1",
        b'{"k":\n' * 1_000 + b"0" + b"}" * 1_000,
        (b"{ %b" % (b" " * 4_000) + b'"%b":' % (b"k" * 4_000)) * 900 + b"0" + b"}" * 900,
        b"[" * 1_000 + b"[]" + b"]" * 1_000,
    ],
    ids=[
        "base64",
        "blank string",
        "wide",
        "long key",
        "blanks",
        "alone",
        "number",
        "deep",
        "long deep keys",
        "squares",
    ],
)
def test_what_is_long_without_a_comma_and_is_json_is_read(text: bytes) -> None:
    for body in (text, b'{"a": [%b], "b": %b, "c": 1}' % (text, text)):
        assert parses(body)
        assert refusal(body)[0] == ""


def test_a_number_of_more_than_a_megabyte_is_refused_with_a_reason() -> None:
    said, _ = refusal(b'{"x": 0.%b}' % (b"1" * 2**21))
    assert "neither a comma nor a bracket" in said


def test_a_text_without_commas_is_judged_in_short_pieces() -> None:
    body = b"[" + (b"{ %b" % (b" " * 4_000) + b'"%b":' % (b"k" * 4_000)) * 900 + b"0" + b"}" * 900 + b"]"
    parts = [part for part in LongBody([body]).parts() if part is not None]
    assert max(len(part.text) for part in parts) < 5 * BLOCK_BYTES


@given(st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b",", b'"', b"a"]), max_size=30).map(b"".join), st.booleans())
def test_a_cut_is_the_last_place_outside_of_strings(text: bytes, begins: bool) -> None:
    inside, found, quotes = begins, None, 0
    for at, one in enumerate(text):
        inside ^= one == ord('"')
        quotes += one == ord('"')
        if not inside and one in b",[]{}":
            found, quotes = Cut(at + (one != ord(",")), one in b"[{"), 0
    assert last_cut(text, 30, ends_in_string=inside) == found
    assert last_cut(text, 4, ends_in_string=inside) == (found if quotes <= 4 else None)


@given(st.binary(max_size=6).map(lambda some: bytes(b"[]{}"[one % 4] for one in some)), st.text('[]{}"a', max_size=60))
def test_brackets_are_opened_and_closed_one_after_another(before: bytes, text: str) -> None:
    opened, stack = bytearray(before), list(before)
    below = False
    for one in "".join(text.split('"')[::2]).encode().replace(b"a", b""):
        if one in b"[{":
            stack.append(one)
        elif stack:
            stack.pop()
        else:
            below = True
            break
    if below:
        with pytest.raises(ValueError, match="not opened"):
            note_brackets(opened, text.encode(), in_string=False)
        return
    note_brackets(opened, text.encode(), in_string=False)
    assert list(opened) == stack
