"""Lines of logs that messages quote: whatever stands around one, and however the message is cut, it can be withheld."""

import orjson
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.quoted_lines import BEGIN, END, WITHHELD, plain, quote, shown_json

SECRET = "sk-7f3a"
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
