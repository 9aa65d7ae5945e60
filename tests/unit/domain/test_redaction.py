"""The values of secrets are found and replaced in JSON and events, and names that clients work with stay."""

import json
import random
import re
import string
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.access.redaction import NOTHING_REDACTED, Redaction, Use
from schemas.manifest.deployment import DeploymentSpec
from schemas.redaction_mark import LEAST_BYTES, MARK

TOKEN = 'hf_Ab"c\\dÄ\ne1'


def many(count: int) -> dict[str, str]:
    chance = random.Random(count)  # noqa: S311 - for a test
    return {f"s-{n}": "".join(chance.choices(string.ascii_letters, k=20)) for n in range(count)}


@pytest.mark.parametrize("others", [0, 200], ids=["few", "many"])
def test_a_value_is_shown_nowhere(others: int) -> None:
    redaction = Redaction({**many(others), "hf": f"{TOKEN}\n"})
    told = {
        "env": {"A": TOKEN, "B": f"x{TOKEN}{TOKEN}", "C": "plain"},
        "message": f"it says {TOKEN}",
        "list": [TOKEN, {"deep": [TOKEN]}, 1, None, 2.5, True],
    }
    for body in (orjson.dumps(told), json.dumps(told).encode()):
        shown = redaction.shown(body)
        assert orjson.loads(shown) == {
            "env": {"A": MARK, "B": f"x{MARK}{MARK}", "C": "plain"},
            "message": f"it says {MARK}",
            "list": [MARK, {"deep": [MARK]}, 1, None, 2.5, True],
        }
    body = orjson.dumps({"env": {"A": "hf_Ab"}})
    assert redaction.shown(body) is body
    assert redaction.shown(b"") == b""


@pytest.mark.parametrize("others", [0, 200], ids=["few", "many"])
def test_events_of_a_stream_keep_their_form(others: int) -> None:
    redaction = Redaction({**many(others), "hf": TOKEN})
    held = orjson.dumps({"env": {"A": TOKEN}})
    stream = b'event: changed\ndata: %b\n\nevent: gone\ndata: {"n":1.50}\n\n' % held
    assert redaction.shown(stream) == (
        b'event: changed\ndata: {"env":{"A":"[redacted]"}}\n\nevent: gone\ndata: {"n":1.50}\n\n'
    )
    assert redaction.shown(b"neither " + held) == b'neither {"env":{"A":"[redacted]"}}'


def test_a_weak_value_stays_where_it_is_a_name() -> None:
    redaction = Redaction({"weak": "simulated", "org": "acme/model-1", "kind": "Deployment"})
    told = {
        "kind": "Deployment", "name": "simulated", "simulated": 1, "model": "acme/model-1",
        "env": {"A": "simulated", "B": {"secret": "simulated"}}, "message": "engine simulated has failed",
        "fields": [{"field": "env.A", "old": "simulated", "new": {"x": "simulated"}}],
    }  # fmt: skip
    assert orjson.loads(redaction.shown(orjson.dumps(told))) == {
        **told,
        "env": {"A": MARK, "B": {"secret": "simulated"}},
        "message": f"engine {MARK} has failed",
        "fields": [{"field": "env.A", "old": MARK, "new": {"x": MARK}}],
    }


def test_names_of_things_stay_and_what_is_told_of_them_does_not() -> None:
    redaction = Redaction({"x": "Token-of-mine"})
    kept = {"model": "hf:o/Token-of-mine", "aliases": ["Token-of-mine"], "adapters": {"a": "path:/Token-of-mine"}}
    assert redaction.value(kept) == kept
    told = {"workers": [{"name": "w", "message": "says Token-of-mine"}], "env": {"model": "Token-of-mine"}}
    assert redaction.value(told) == {"workers": [{"name": "w", "message": f"says {MARK}"}], "env": {"model": MARK}}


def test_short_values_stay() -> None:
    redaction = Redaction({"a": "x" * (LEAST_BYTES - 1), "b": " 1\n", "c": ""})
    assert not redaction
    assert not NOTHING_REDACTED
    body = orjson.dumps({"env": {"A": "x" * 7, "B": "1"}})
    assert redaction.shown(body) is body
    assert not redaction.holds("x" * 7)
    assert Redaction({"a": "x" * LEAST_BYTES}).holds("-" + "x" * LEAST_BYTES)


def test_the_longest_of_several_values_goes_as_a_whole() -> None:
    redaction = Redaction({"a": "Secret-1", "b": "Secret-1-and-more"})
    assert redaction.value("Secret-1-and-more") == MARK
    assert redaction.value("Secret-1-and") == f"{MARK}-and"


def test_fields_that_hold_a_value_are_named_with_its_secret() -> None:
    redaction = Redaction({"hf": TOKEN, "same": TOKEN, "weak": "simulated"})
    spec = {
        "engine": "simulated",
        "env": {"A": TOKEN, "B": f"u:{TOKEN}@h", "C": {"secret": "weak"}, "D": "other"},
        "args": {"key": ["x", TOKEN]},
        "command": ["run", "simulated"],
        "utilization_policy": {"webhook": {"url": f"https://h/{TOKEN}", "secret": "hf"}},
    }
    assert list(redaction.uses(spec)) == [
        Use("env.A", "hf", entire=True),
        Use("env.B", "hf", entire=False),
        Use("args.key[1]", "hf", entire=True),
        Use("command[1]", "weak", entire=True),
        Use("utilization_policy.webhook.url", "hf", entire=False),
    ]
    assert list(NOTHING_REDACTED.uses(spec)) == []


FULL: dict[str, Any] = {
    "model": "hf:Organisation/A-Model", "engine": "vllm", "runtime": "docker", "image": "registry.example/vllm:Tag-1",
    "docker": {"volumes": {"/Data/Of-Models": "/Mounted/There"}}, "args": {"key": "Argument-1", "many": ["Argument-2"]},
    "env": {"VARIABLE_1": "Environment-1"}, "labels": {"Label-Name": "Label-Value"},
    "placement": {"labels": {"Worker-Label": "Worker-Value"}, "workers": ["Worker-Name-1"], "gpus": ["GPU-Of-Someone"]},
    "serving": {"aliases": ["Organisation/Alias"], "adapters": {"Adapter-1": "path:/Adapters/One"}},
    "utilization_policy": {
        "min_gpu_utilization": 5, "time_window": "5m",
        "webhook": {"url": "https://Host.example/Path-1", "secret": "hook-name"},
    },
}  # fmt: skip


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (one for key, inner in value.items() for one in (key, *strings(inner)))
    elif isinstance(value, list):
        yield from (one for inner in value for one in strings(inner))
    elif isinstance(value, str):
        yield value


def test_clients_can_read_a_spec_whatever_is_a_secret_in_it() -> None:
    spec = DeploymentSpec.model_validate(FULL).model_dump(mode="json")
    values = [one for one in strings(FULL) if len(one) >= LEAST_BYTES]
    values += [one[at:] for one in values for at in (1, 5, 8) if len(one) - at >= LEAST_BYTES]
    assert len(values) > 40
    for value in values:
        DeploymentSpec.model_validate(Redaction({"x": value}).value(spec)), value


VALUES = st.text(st.characters(codec="utf-8"), min_size=8, max_size=12).filter(lambda text: len(text.strip()) >= 8)


@given(
    values=st.lists(VALUES, min_size=1, max_size=5),
    around=st.lists(st.text(max_size=12), max_size=4),
    held=st.booleans(),
)
def test_few_and_many_values_are_found_alike(*, values: list[str], around: list[str], held: bool) -> None:
    texts = [*around, *([f"{around[0] if around else ''}{values[-1].strip()}"] if held else [])]
    body = orjson.dumps([text.encode(errors="replace").decode() for text in texts])
    named = {f"v-{n}": value for n, value in enumerate(values)}
    few, much = Redaction(named), Redaction({**many(100), **named})
    assert few.shown(body) == much.shown(body)
    if held:
        shown = "\n".join(few.value(texts, written=True))
        assert values[-1].strip() not in shown.replace(MARK, "\n"), "the mark itself may hold it"


def test_a_value_over_the_border_of_two_pieces_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.domain.access.redaction._BATCH", 16)
    monkeypatch.setattr("controller.domain.access.redaction._SHORT", 0)
    redaction = Redaction({**many(100), "x": "Value-across-pieces"})
    for before in range(40):
        body = orjson.dumps(["-" * before + "Value-across-pieces"])
        assert b"Value" not in redaction.shown(body), before


LETTERS = st.text("ab", min_size=8, max_size=11)


@given(values=st.lists(LETTERS, max_size=8), text=st.text("ab\u00e4 ", max_size=60), short=st.sampled_from([0, 256]))
def test_the_leftmost_and_then_the_longest_value_is_replaced(values: list[str], text: str, short: int) -> None:
    """As an alternation of all values does it, which tries each of them at each place."""
    longest_first = sorted(set(values), key=len, reverse=True)
    expected = re.sub("|".join(longest_first), MARK, text) if values else text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("controller.domain.access.redaction._SHORT", short)
        redaction = Redaction({f"v-{n}": value for n, value in enumerate(values)})
        assert redaction.value(text, written=True) == expected
        assert redaction.holds(text) == (MARK in expected)


@pytest.mark.parametrize("alike", ["", "the-same-begin-"])
@pytest.mark.parametrize("held", ["", "Value-of-mine"])
def test_many_values_cost_about_what_few_do(alike: str, held: str) -> None:
    chance = random.Random(1)  # noqa: S311 - for a test
    text = "".join(chance.choices([*string.ascii_letters, alike], k=50_000)) + held
    short = [text[at : at + 50] for at in range(0, 20_000, 50)]
    costs = []
    for count in (60, 3_000):
        redaction = Redaction({"x": "Value-of-mine", **{n: f"{alike}{v}" for n, v in many(count).items()}})
        begun = time.process_time()
        for _ in range(3):
            assert redaction.holds(text) == bool(held)
            assert (MARK in redaction.value([text, *short], written=True)[0]) == bool(held)
        costs.append(time.process_time() - begun)
    assert costs[1] < 5 * costs[0], costs


def test_many_values_of_one_beginning_cost_about_what_few_do() -> None:
    """As web tokens have it; each has another length, and the text has their beginning at many places."""
    begin = "eyJhbGciOiJIUzI1NiJ9."
    costs = []
    for count in (20, 400):
        values = {f"v-{n}": begin + "x" * (100 + n) + "!" for n in range(count)}
        redaction, body = Redaction(values), orjson.dumps("eyJhbGci" * 40_000 + " " + values["v-3"])
        begun = time.process_time()
        for _ in range(3):
            assert MARK.encode() in redaction.shown(body)
        costs.append(time.process_time() - begun)
    assert costs[1] < 10 * costs[0], costs
