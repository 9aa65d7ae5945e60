"""No answer shows the value of a stored secret, whatever tells it, also where a manifest holds it as plain text."""

import asyncio
from typing import Any
from urllib.parse import quote

import orjson
import pytest

from controller.api.route import Access
from controller.domain.access.redaction import Redaction
from controller.domain.events import NewEvent
from controller.live import event_feed
from controller.live.known_secrets import KnownSecrets
from controller.store.access.secrets import delete_secret, put_secret
from controller.store.core.database import Database
from controller.store.core.events import write_events
from schemas.api.deployments import DeploymentView
from schemas.api.view import from_plain
from support.database.ledger import add_host, add_instance, claim, rows
from support.leading.all_answers import READS, path_of, told
from support.leading.live_tab import tab
from support.leading.served_api import ServedApi

VALUE = "hf_Wq7'\"\\zKäX"
CORE = "zKäX"  # of the value, and without what JSON escapes
ONE = "/api/v1/deployments/d"
SPEC: dict[str, Any] = {
    "engine": "custom",
    "command": ["serve", "{port}", f"--key={VALUE}"],
    "env": {"HF_TOKEN": VALUE, "URL": f"https://u:{VALUE}@host/", "OTHER": "plain"},
    "labels": {"token": VALUE},
    "utilization_policy": {
        "min_gpu_utilization": 5, "time_window": "5m", "webhook": {"url": f"https://h.example/{VALUE}", "secret": "hf"},
    },
    "resources": {"gpus": 1},
}  # fmt: skip


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "POLL_S", 0.05)


async def put(api: ServedApi, value: str = VALUE) -> None:
    status, body = await api.call("PUT", "/api/v1/secrets/hf", json={"value": f"{value}\n"})
    assert status == 204, body


async def applied(api: ServedApi, **fields: Any) -> dict[str, Any]:
    status, body = await api.call("PUT", ONE, json={**SPEC, **fields})
    assert status in (200, 201), body
    answer: dict[str, Any] = body
    return answer


async def filled(api: ServedApi, db: Database) -> None:
    """Whatever can hold a text holds the value: two revisions, a policy, events, messages, the audit log."""
    await put(api)
    await applied(api)
    await applied(api, env={"HF_TOKEN": f"{VALUE}-2", "OTHER": "other"})
    policy = {**SPEC["utilization_policy"], "default": False}
    assert (await api.call("PUT", "/api/v1/policies/p", json=policy))[0] == 201
    assert (await api.call("PUT", "/api/v1/policies/p", json={**policy, "time_window": "6m"}))[0] == 200
    assert (await api.call("DELETE", f"/api/v1/deployments/{quote(VALUE)}"))[0] == 404
    host = await add_host(db, "w", gpus=1, gib=8)
    (row,) = await rows(db, "select uid::text from deployments")
    for name, phase in (("a", "backoff"), ("b", "pending"), ("c", "failed")):
        await add_instance(db, row["uid"], name, phase=phase, epoch=1)
    await claim(db, host.gpus[0], "a", 1024)
    text = f"exited with code 1: bad token {VALUE}"
    event = NewEvent("backoff", text, ("instance:a", f"deployment:{row['uid']}", f"worker:{host.id}"), {"said": VALUE})
    condition = {"type": "GpusReadable", "status": "false", "reason": "gpus_unreadable", "message": text, "since": None}
    async with db.transaction() as connection:
        await connection.execute(
            "update instances set reason = 'crash', message = $1, failures = 5, revision = 2", text
        )
        await connection.execute("update deployments set phase = 'failed', reason = 'crash', message = $1", text)
        await connection.execute("update workers set conditions = $1", [condition])
        await write_events(connection, [event])


def showing(answers: dict[str, str]) -> set[str]:
    return {path for path, text in answers.items() if CORE in text or VALUE in text}


async def test_no_answer_shows_it_not_even_to_administrators(api: ServedApi, db: Database) -> None:
    await filled(api, db)
    before = (await api.get(ONE))["generation"]
    answers = await told(api, "admin")
    answers["diff of two"] = orjson.dumps(await api.get(f"{ONE}/revisions/diff?from=1&to=2")).decode()
    assert showing(answers) == set()
    assert {path for path, text in answers.items() if "[redacted]" in text} >= {
        ONE, "/api/v1/deployments", f"{ONE}/revisions", "/api/v1/policies", "/api/v1/events", "diff of two",
        "/api/v1/attention", "/api/v1/workers", "/api/v1/instances/a", "/api/v1/audit-log", "plan", "watch", "objects",
        "events",
    }  # fmt: skip
    known = from_plain(DeploymentView, await api.get(ONE, role="viewer"))
    assert known.spec.env == {"HF_TOKEN": "[redacted]-2", "OTHER": "other"}
    assert known.spec.command == ("serve", "{port}", "--key=[redacted]")
    assert known.generation == before
    # As it was written, what is stored and what agents get.
    (row,) = await rows(db, "select spec from deployments")
    assert row["spec"]["env"]["HF_TOKEN"] == f"{VALUE}-2"

    await api.call("DELETE", "/api/v1/secrets/hf")
    assert (await api.get(ONE))["spec"]["env"]["HF_TOKEN"] == f"{VALUE}-2"


async def test_what_was_read_cannot_be_applied_over_the_value(api: ServedApi, db: Database) -> None:
    await put(api)
    read = await applied(api)
    assert read["spec"]["env"]["HF_TOKEN"] == "[redacted]"
    body = {"manifests": [{"kind": "Deployment", "name": "d", **read["spec"]}]}
    for method, path, sent, prefix in (
        ("PUT", ONE, read["spec"], ""), ("POST", "/api/v1/apply", body, ""), ("POST", "/api/v1/plan", body, ""),
        ("POST", "/api/v1/defrag", body, ""),
    ):  # fmt: skip
        status, answer = await api.call(method, path, json=sent)
        assert status == 400, (path, answer)
        problems = {one["path"]: one["message"] for one in answer["error"]["details"]["problems"]}
        assert set(problems) == {
            prefix + field
            for field in ("env.HF_TOKEN", "env.URL", "command[2]", "labels.token", "utilization_policy.webhook.url")
        }
        assert problems[f"{prefix}env.HF_TOKEN"].endswith("name the secret: {secret: NAME}")
    (row,) = await rows(db, "select spec, generation from deployments")
    assert (row["spec"]["env"]["HF_TOKEN"], row["generation"]) == (VALUE, 1)
    unchanged = await applied(api)
    assert unchanged["generation"] == 1


async def test_those_that_write_it_are_warned(api: ServedApi) -> None:
    await put(api)
    told = (await applied(api))["warnings"]
    assert "env.HF_TOKEN: is the value of secret hf in plain text; name it instead: {secret: hf}" in told
    assert "env.URL: contains the value of secret hf in plain text; give it a variable of its own: {secret: hf}" in told
    assert len(told) == 5
    manifest = {"kind": "Deployment", "name": "e", "engine": "simulated", "env": {"LANG": VALUE}}
    for path in ("/api/v1/plan", "/api/v1/apply"):
        _, body = await api.call("POST", path, json={"manifests": [manifest]}, role="operator")
        assert body["warnings"] == [
            "e: env.LANG: is the value of secret hf in plain text; name it instead: {secret: hf}"
        ]
    named = await applied(api, command=["serve"], env={"A": {"secret": "hf"}}, labels={}, utilization_policy="none")
    assert named["warnings"] == []


async def test_a_viewer_learns_of_no_guess_whether_it_is_one(api: ServedApi) -> None:
    await put(api)
    await applied(api, utilization_policy="none")
    answers = []
    for guess in (VALUE, "another-guess"):
        env = {"HF_TOKEN": "other", "LANG": guess}
        sent = {"manifests": [{"kind": "Deployment", "name": "d", "engine": "simulated", "env": env}]}
        status, body = await api.call("POST", "/api/v1/plan", json=sent, role="viewer")
        assert status == 200, body
        assert body["warnings"] == []
        changes = {one["field"]: (one["old"], one["new"]) for one in body["field_changes"]["d"]}
        assert changes["env.HF_TOKEN"] == ("[redacted]", "other")
        assert changes["env.LANG"] == (None, guess)
        answers.append(str(body).replace(repr(guess), ""))
    assert answers[0] == answers[1]
    _, missing = await api.call("GET", f"/api/v1/deployments/{quote(VALUE)}", role="viewer")
    assert "[redacted]" not in str(missing)


async def test_a_viewers_plan_shows_no_stored_policy_with_it(api: ServedApi) -> None:
    await put(api)
    assert (await api.call("PUT", "/api/v1/policies/p", json=SPEC["utilization_policy"]))[0] == 201
    manifest = {"kind": "Deployment", "name": "d", "engine": "simulated", "utilization_policy": "p"}
    status, body = await api.call("POST", "/api/v1/plan", json={"manifests": [manifest]}, role="viewer")
    assert status == 200, body
    assert body["policies"]["d"]["spec"]["webhook"]["url"] == "https://h.example/[redacted]"


async def test_no_answer_confirms_a_guess_in_a_query(api: ServedApi, db: Database) -> None:
    await put(api)
    await add_host(db, "w", gpus=1, gib=8)
    asked = 0
    for route in READS:
        if route.access is not Access.READ or route.path.endswith(("/cache", "/live")):
            continue
        for one in route.query:
            path, asked_for = path_of(route).partition("?")[0], {one.name: VALUE}
            status, body = await api.call("GET", path, role="viewer", params=asked_for)
            asked += status == 200
            assert "[redacted]" not in str(body), (path, asked_for)
    assert asked > 3, "some queries are answered"


async def test_a_weak_secret_hides_no_names(api: ServedApi) -> None:
    await put(api, "simulated")
    status, body = await api.call(
        "PUT", "/api/v1/deployments/simulated", json={"engine": "simulated", "env": {"A": "simulated"}}
    )
    assert status == 201, body
    view = from_plain(DeploymentView, body)
    assert (view.name, view.spec.engine, view.spec.env) == ("simulated", "simulated", {"A": "[redacted]"})


async def test_open_watchers_are_told_anew_without_it(api: ServedApi) -> None:
    await applied(api, utilization_policy="none")
    async with tab(api) as one:
        await one.open(1, "objects", kinds=["deployments"])
        assert CORE in str(await one.of(1, "snapshot"))
        await put(api)
        changed = await one.of(1, "changed")
        assert changed["object"]["spec"]["env"]["HF_TOKEN"] == "[redacted]"


async def test_other_controllers_learn_of_it_by_the_hint(api: ServedApi, db: Database) -> None:
    other = KnownSecrets(db, api.changes)
    running = asyncio.create_task(other.run())
    try:
        for change, known in ((put_secret(db, "hf", VALUE), True), (delete_secret(db, "hf"), False)):
            await change
            api.changes.publish("secret", "hf")
            async with asyncio.timeout(10):
                while bool(other.redaction()) is not known:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.01)
    finally:
        running.cancel()


async def test_an_event_is_redacted_once_for_all_that_follow(
    api: ServedApi, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    redact, looked_through = Redaction.shown, []

    def shown(self: Redaction, body: bytes) -> bytes:
        if b"it says" in body:
            looked_through.append(body)
        return redact(self, body)

    monkeypatch.setattr(Redaction, "shown", shown)
    async with tab(api) as one, tab(api) as two, tab(api, "admin") as three:
        for each in (one, two, three):
            await each.open(1, "events")
            await each.of(1, "opened")
        for number, value in enumerate((VALUE, "another-value."), 1):
            await put(api, value)
            async with db.transaction() as connection:
                await write_events(connection, [NewEvent("note", f"it says {value}", ("deployment:d",))])
            for each in (one, two, three):
                await each.of(1, "event")  # that the secret was set
                assert (await each.of(1, "event"))["event"]["message"] == "it says [redacted]"
            assert len(looked_through) == number
