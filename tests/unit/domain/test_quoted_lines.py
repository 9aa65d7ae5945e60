"""Lines of logs that messages quote: whatever stands around one, and however the message is cut, it can be withheld."""

import json
import re
from collections.abc import Callable

import orjson
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.access.redaction import BEGIN, END, WITHHELD, plain, quote, shown_json
from support.growth import assert_in_line

SECRET = "sk-7f3a"
# Says what is withheld most plainly, but looks through a text once for each quotation mark in it.
PLAINLY = re.compile(rb'(?<=")(?:[^"\\]|\\.)*?' + END.encode(), re.DOTALL)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


def shown(message: str, *, logs: bool) -> str:
    whole = {"before": 'a "text"', "message": message, "more": ["b\\", {"c": message}], "after": "x"}
    read = orjson.loads(shown_json(orjson.dumps(whole), logs=logs))
    assert (read["before"], read["after"], read["more"][0]) == ('a "text"', "x", "b\\")
    assert read["more"][1]["c"] == read["message"]
    return str(read["message"])


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_only_a_reader_of_logs_gets_the_line(before: str, head: str, tail: str, after: str) -> None:
    line = f"{plain(head)}{SECRET}{plain(tail)}"
    before, after = plain(before), plain(after)
    message = quote(f"{before}{line}{after}", line)
    assert shown(message, logs=True) == f"{before}{line}{after}"
    assert SECRET not in shown(message, logs=False)
    assert shown(f"rollout halts: {message}", logs=False).startswith("rollout halts: ")


@given(TEXTS, st.integers(0, 40), st.integers(0, 40))
def test_a_message_that_is_cut_tells_no_part_of_the_line(text: str, first: int, last: int) -> None:
    line = "A" * 10
    cut = quote(f"said: {line}", line)[first : len(line) + 8 - last]
    withheld = shown(cut, logs=False)
    assert "A" not in withheld.replace(WITHHELD, "") or (BEGIN not in cut and END not in cut)
    assert shown(text, logs=True) == plain(text)


def test_marks_that_an_agent_sends_open_nothing() -> None:
    line = f"{END}{SECRET}{BEGIN}"
    assert SECRET not in shown(quote(f"exit {END} {line} {BEGIN}", line), logs=False)
    assert shown(quote("exit", SECRET), logs=False) == WITHHELD, "a line that the message does not hold"
    assert quote(f"a{BEGIN}b", "") == "ab"


def test_an_answer_without_marks_stays_as_it_is() -> None:
    body = b'{"message":"exited with code 1"}'
    assert shown_json(body, logs=False) is body


def plainly(body: bytes) -> bytes:
    return PLAINLY.sub(WITHHELD.encode(), body).replace(END.encode(), b"")


@given(st.lists(st.sampled_from([b'"', b"\\", END.encode(), b"\xef", b"a", b"\n", b","]), max_size=40).map(b"".join))
def test_any_bytes_are_withheld_as_one_look_at_each_place_says(body: bytes) -> None:
    assert shown_json(body, logs=False) == plainly(body)


@given(st.lists(st.text(st.sampled_from(['"', "\\", END, "é", "a", "\n"]), max_size=12)))
def test_any_json_is_withheld_so_and_stays_json(texts: list[str]) -> None:
    body = orjson.dumps(texts)
    assert shown_json(body, logs=False) == plainly(body)
    assert len(orjson.loads(shown_json(body, logs=False))) == len(texts)


def test_the_marks_in_a_text_cost_as_much_as_it_is_long() -> None:
    for begins in (f"{END}", f"{BEGIN}{END}{END}", BEGIN):
        body = {"before": f"x{begins}", "message": '"' * 10, "marks": begins * 10}

        def of(times: int, body: dict[str, str] = body) -> Callable[[], bytes]:
            raw = json.dumps({key: text * times for key, text in body.items()}, ensure_ascii=False).encode()
            return lambda: shown_json(raw, logs=False)

        assert_in_line(of, 1_000)
