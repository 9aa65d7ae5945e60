"""How many tokens are reserved for a request: by its text, by what it asks for, and by what earlier ones used."""

import json
from typing import Any

import pytest

from gateway.bodies.json_body import read_json
from gateway.bodies.prompt_text import prompt_bytes
from gateway.quotas.token_history import FIRST_ANSWER, TokenHistory

IMAGE = "data:image/png;base64," + "iVBORw0KGgo" * 2000
PCM = "UklGRiQAAABXQVZF" * 2000


def history(answers: list[int], prompts: tuple[tuple[int, int], ...] = ()) -> TokenHistory:
    made = TokenHistory()
    for tokens in answers:
        made.note_answers(tokens, 1)
    for size, tokens in prompts:
        made.note_prompt(size, tokens)
    return made


@pytest.mark.parametrize(
    ("earlier", "prompt", "answers", "most", "reserved"),
    [
        (history([]), 400, 1, None, 100 + FIRST_ANSWER),
        (history([]), 400, 1, 50, 150),
        (history([]), 400, 3, 50, 250),
        (history([]), 401, 2, None, 101 + 2 * FIRST_ANSWER),
        (history([]), 0, 1, 0, 0),
        (history([10] * 5), 0, 1, None, FIRST_ANSWER),  # too few to be small
        (history([4000]), 0, 1, None, 4000),
        (history([10] * 20), 0, 1, None, 10),
        (history([10] * 95 + [900] * 5), 0, 1, None, 10),
        (history([10] * 94 + [900] * 6), 0, 1, None, 900),
        (history([900] * 100 + [10] * 100), 0, 1, None, 10),  # the latest hundred count
        (history([10] * 20), 0, 1, 3000, 3000),
        (history([], ((1000, 500),)), 400, 1, 0, 200),
        (history([], ((1000, 500), (3000, 500))), 400, 1, 0, 100),
        (history([], ((10**6, 1),)), 400, 1, 0, 50),  # fields that are no prompt
        (history([], ((10, 10**6),)), 400, 1, 0, 400),
        (history([], ((10**6, 250_000), *((10_000, 5_000),) * 1000)), 400, 1, 0, 200),  # it follows the latest
    ],
)
def test_reservations(earlier: TokenHistory, prompt: int, answers: int, most: int | None, reserved: int) -> None:
    assert earlier.reservation(prompt, answers, most) == pytest.approx(reserved, rel=0.02)


def test_a_path_without_answers_reserves_its_prompt_alone() -> None:
    assert history([]).reservation(400, 1, None, 0) == 100
    assert history([0] * 30).reservation(400, 1, None, 0) == 100
    assert history([70]).reservation(0, 1, None, 0) == 70


def test_several_answers_of_a_request_count_by_their_mean() -> None:
    made = TokenHistory()
    assert made.bytes_per_token == 4.0
    made.note_prompt(20, 10)
    assert made.bytes_per_token == 2.0
    for tokens, answers, mean in ((3000, 3, 1000), (2001, 2, 1001), (900, 0, 900), (901, 1, 901)):
        made = TokenHistory()
        made.note_answers(tokens, answers)
        assert made.answer(0) == mean


@pytest.mark.parametrize(
    ("fields", "limit", "answers"),
    [
        ({}, None, 1),
        ({"max_tokens": 7}, 7, 1),
        ({"max_completion_tokens": 1, "max_tokens": 5000, "n": 2}, 5000, 2),  # an engine may read the other one
        ({"max_output_tokens": 40}, 40, 1),
        ({"prompt": ["a", "b", "c"], "max_tokens": 9}, 9, 3),
        ({"prompt": [[1, 2], [3]], "n": 2}, None, 4),
        ({"prompt": [1, 2, 3], "n": 2}, None, 2),
        ({"max_tokens": 0, "n": -1}, None, 1),
    ],
)
def test_what_a_request_asks_for(fields: dict[str, Any], limit: int | None, answers: int) -> None:
    for filler in ("", "x" * 50_000):
        asked = read_json(json.dumps({"model": "m", **fields, "user": filler}).encode())
        assert (asked.answer.limit, asked.answer.choices * asked.prompts) == (limit, answers)


@pytest.mark.parametrize(
    ("prompt", "number"),
    [
        (["some words"] * 30_000, 30_000),
        (["word " * 20_000] * 7, 7),
        ([[1, 2, 3]] * 20_000, 20_000),
        (list(range(100_000)), 1),
        ("word " * 100_000, 1),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_prompts_of_a_long_body_are_counted(prompt: Any, number: int, order: int) -> None:
    fields = {"model": "m", "prompt": prompt, "max_tokens": 9, "other": ["x"] * 20_000}
    text = json.dumps(dict([*fields.items()][::order])).encode()
    assert read_json(text).prompts == number


def message(*content: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(content)}]}


TEXT = {"type": "text", "text": "What is in it? " * 20}


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (message(TEXT), 0),
        (message(TEXT, {"type": "image_url", "image_url": {"url": IMAGE}}), len(IMAGE)),
        (message({"type": "input_image", "image_url": IMAGE}, TEXT), len(IMAGE)),
        (message({"type": "file", "file": {"file_data": IMAGE, "filename": "a.pdf"}}), len(IMAGE)),
        (message({"type": "input_audio", "input_audio": {"data": PCM, "format": "wav"}}), len(PCM)),
        (message({"type": "image", "source": {"type": "base64", "data": PCM}}), len(PCM)),
        (message(*[{"type": "image_url", "image_url": {"url": IMAGE}}] * 5), 5 * len(IMAGE)),
        (message({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}), 0),
        # What only looks like media
        (message({"type": "text", "text": IMAGE}), 0),
        ({"model": "m", "messages": [{"role": "user", "content": IMAGE}]}, 0),
        (message({"type": "text", "text": json.dumps({"url": IMAGE, "data": PCM})}), 0),
        (message({"type": "image_url", "image_url": {"url": "data: " + "word " * 500}}), 0),
        (message({"type": "input_audio", "input_audio": {"data": "some words " * 500}}), 0),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " : ")])
def test_media_are_no_text(body: dict[str, Any], media: int, separators: tuple[str, str]) -> None:
    text = json.dumps(body, separators=separators).encode()
    counted = prompt_bytes(text)
    head = len("data:image/png;base64,") * text.count(b"data:image") if media else 0
    assert len(text) - media <= counted <= len(text) - media + head


def test_many_marks_cost_no_more_than_text() -> None:
    text = b'{"a":[' + b'"data",' * 200_000 + b"1]}"
    assert prompt_bytes(text) == len(text)


def test_a_mebibyte_of_prompts_and_what_precedes_it_counts_for_half_later() -> None:
    measured = history([], ((2**20, 2**18),))
    assert measured.reservation(4000, 1, 0) == 1000, "four bytes for each token"
    measured.note_prompt(4, 1)
    assert measured.reservation(4000, 1, 0) == 1000, "bytes and tokens are halved alike"
    measured.note_prompt(2**19 - 2, 2**18 - 1)
    half, later = 2**19 + 2, 2**19 - 2
    assert measured.bytes_per_token == pytest.approx((half + later) / (half / 4 + later / 2), rel=1e-4)
