"""Limits of keys and usage over HTTP and by the command line."""

import time
from typing import Any

import pytest

from controller.store.access.key_reads import hash_secret, read_keys
from controller.store.access.usage import Counts, UsageRow, write_usage
from controller.store.core.database import Database
from support.leading.served_api import ServedApi

KEYS = "/api/v1/keys"
LIMITS = {"models": ["chat", "embed-*"], "rpm": 60, "tpm": 1000, "tokens_per_day": 1_000_000, "parallel": 4}


async def problem(api: ServedApi, method: str, path: str, **body: Any) -> tuple[str, str]:
    status, answer = await api.call(method, path, json=body)
    assert (status, answer["error"]["code"]) == (400, "invalid"), answer
    (found,) = answer["error"]["details"]["problems"]
    return found["path"], found["message"]


async def test_a_key_with_limits_is_created_shown_and_changed(api: ServedApi) -> None:
    status, made = await api.call("POST", KEYS, json={"role": "inference", "expires_s": 3600, **LIMITS})
    assert status == 201
    assert {name: made[name] for name in LIMITS} == LIMITS
    status, changed = await api.call("PATCH", f"{KEYS}/{made['id']}", json={"rpm": 120, "tpm": None, "models": []})
    assert status == 200
    assert (changed["rpm"], changed["tpm"], changed["models"], changed["parallel"]) == (120, None, [], 4)
    assert changed["expires_at"] == made["expires_at"]
    _, lasting = await api.call("PATCH", f"{KEYS}/{made['id']}", json={"expires_s": None, "name": "team"})
    assert (lasting["expires_at"], lasting["name"]) == (None, "team")
    shown = next(one for one in (await api.get(KEYS))["items"] if one["id"] == made["id"])
    assert shown == lasting
    events = (await api.get(f"/api/v1/events?object=key:{made['id']}"))["items"]
    assert [event["reason"] for event in events] == ["key_changed", "key_changed", "key_created"]
    assert events[1]["actor"] == "key:admin"
    assert events[1]["evidence"]["rpm"] == [60, 120]


async def test_wrong_limits_name_field_and_fix(api: ServedApi) -> None:
    for body, path, part in (
        ({"rpm": 0}, "rpm", "1"),
        ({"rpm": True}, "rpm", "number"),
        ({"tpm": "many"}, "tpm", "whole number"),
        ({"parallel": -1}, "parallel", "1"),
        ({"tokens_per_day": 10**18}, "tokens_per_day", "1000000000000000"),
        ({"models": ["a,b"]}, "models[0]", ""),
        ({"expires_s": 0}, "expires_s", "between"),
        ({"rmp": 5}, "rmp", "rpm"),
    ):
        found, message = await problem(api, "POST", KEYS, role="inference", **body)
        assert (found, part in message) == (path, True), (found, message)
    assert "viewer" in (await problem(api, "POST", KEYS, role="viewer", rpm=5))[1]
    _, viewer = await api.call("POST", KEYS, json={"role": "viewer"})
    assert "viewer" in (await problem(api, "PATCH", f"{KEYS}/{viewer['id']}", rpm=5))[1]
    assert (await api.call("PATCH", f"{KEYS}/nothing", json={"rpm": 5}))[0] == 404


async def test_an_expired_key_is_refused(api: ServedApi) -> None:
    _, made = await api.call("POST", KEYS, json={"role": "viewer", "expires_s": 1})
    header = {"Authorization": f"Bearer {made['key']}"}
    deadline = time.monotonic() + 20
    seen = set()
    while time.monotonic() < deadline and 401 not in seen:
        async with api.session.get(api.url + "/api/v1/deployments", headers=header) as answer:
            seen.add(answer.status)
    assert seen == {200, 401}


async def usage(db: Database, keys: dict[str, str]) -> None:
    minute = int(time.time() // 60)
    async with db.transaction() as connection:
        ids = {key: (await read_keys(connection))[hash_secret(value)].key_id for key, value in keys.items()}
        rows = [
            UsageRow(minute, ids["inference"], "chat", "chat/completions", Counts(4, 1, 40, 8, 20, 1, 2.0, 4, 0.4)),
            UsageRow(minute, ids["inference"], "embed", "embeddings", Counts(1, 0, 9, 0, 0, 0, 0.1, 0, 0.0)),
            UsageRow(minute, ids["operator"], "chat", "chat/completions", Counts(1, 0, 10, 0, 5, 0, 0.5, 1, 0.1)),
        ]
        assert await write_usage(connection, "00000000-0000-4000-8000-000000000001", 1, rows)


async def test_usage_is_summed_by_what_was_asked(api: ServedApi, db: Database) -> None:
    await usage(db, api.keys)
    items = (await api.get("/api/v1/usage"))["items"]
    assert [(one["key_name"], one["model"], one["requests"]) for one in items] == [
        ("inference", "chat", 4),
        ("operator", "chat", 1),
        ("inference", "embed", 1),
    ]
    assert items[0]["first_token_s"] == pytest.approx(0.1)
    assert items[2]["first_token_s"] is None
    models = (await api.get("/api/v1/usage?by=model&since=1h"))["items"]
    assert [(one["key"], one["model"], one["prompt_tokens"], one["estimated"]) for one in models] == [
        (None, "chat", 50, 1),
        (None, "embed", 9, 0),
    ]
    own = (await api.get("/api/v1/usage?by=key", role="inference"))["items"]
    assert [(one["key_name"], one["requests"]) for one in own] == [("inference", 5)]
    for query in ("by=gpu", "since=5y", "form=csv"):
        assert (await api.call("GET", f"/api/v1/usage?{query}"))[0] == 400
