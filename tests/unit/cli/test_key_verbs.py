import csv

import pytest

from cli.verbs.report import usage_csv, usage_table
from schemas.api.usage import UsageReport
from schemas.api.view import from_plain

ALL = [
    *("--models", "chat,embed-*", "--rpm", "60", "--tpm", "1000"),
    *("--tokens-per-day", "1000000", "--parallel", "4", "--expires", "30d"),
]
BODY = {
    "models": ["chat", "embed-*"],
    "rpm": 60,
    "tpm": 1000,
    "tokens_per_day": 1_000_000,
    "parallel": 4,
    "expires_s": 30 * 86400.0,
}


def test_create_sends_the_limits(gpuward, api):
    gpuward("key", "create", "--role", "inference", *ALL)
    assert api.bodies("POST", "/api/v1/keys") == [{"role": "inference", **BODY}]


def test_update_sends_what_was_given_and_none_removes(gpuward, api):
    gpuward("key", "update", "some-id", "--rpm", "none", "--models", "none", "--expires", "none", "--tpm", "5")
    assert api.bodies("PATCH", "/api/v1/keys/some-id") == [{"rpm": None, "tpm": 5, "models": [], "expires_s": None}]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["update", "some-id"], "nothing to change"),
        (["update", "some-id", "--rpm", "many"], "--rpm: must be a whole number"),
        (["create", "--role", "inference", "--tokens-per-day", "-1"], "--tokens-per-day: must be a whole number"),
        (["create", "--role", "inference", "--models", ","], "--models: names no model"),
        (["create", "--role", "inference", "--expires", "soon"], "not a valid duration"),
    ],
)
def test_wrong_options_are_refused_before_the_api_is_asked(gpuward, api, words, part):
    result = gpuward("key", *words)
    assert result.exit_code == 2
    assert part in " ".join(result.stderr.replace("│", " ").split())
    assert api.asked == []


FIGURES = {
    "requests": 4, "errors": 1, "prompt_tokens": 40, "cached_tokens": 8, "completion_tokens": 20, "estimated": 1,
    "in_flight_s": 2.0, "refused": 3,
}  # fmt: skip
REPORT = from_plain(
    UsageReport,
    {
        "since": "2026-01-01T00:00:00Z",
        "until": "2026-01-08T00:00:00Z",
        "items": [
            {"key": "aaaaaaaa-1", "key_name": "team", "model": "chat", "first_token_s": 0.1, **FIGURES},
            {"key": "bbbbbbbb-2", "key_name": "team", "model": "chat", **FIGURES},
            {"key": "cccccccc-3", "key_name": "ci", "model": "chat", **FIGURES},
        ],
    },
)


def test_usage_names_keys_and_tells_equal_names_apart():
    titles, rows = usage_table(REPORT)
    assert titles[:3] == ["KEY", "MODEL", "REQUESTS"]
    assert [row[0] for row in rows] == ["team (aaaaaaaa)", "team (bbbbbbbb)", "ci"]
    assert rows[0][2:] == ["4", "3", "1", "40", "8", "20", "2.0 s", "0.100 s", "1"]
    assert titles[5:8] == ["PROMPT TOKENS", "CACHED TOKENS", "COMPLETION TOKENS"]
    assert rows[1][-2] == "-"


def test_usage_as_csv():
    first, second, _ = csv.DictReader(usage_csv(REPORT).splitlines())
    assert (first["key"], first["key_name"], first["endpoint"], first["requests"]) == ("aaaaaaaa-1", "team", "", "4")
    assert first["refused"] == "3"
    assert (first["in_flight_s"], first["first_token_s"], second["first_token_s"]) == ("2.000", "0.100", "")
