"""The audit log: an entry for every route that may change something, without secrets, and bounded for strangers."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from controller.api import audit_trail
from controller.api.app import all_routes
from controller.api.audit_trail import TRAIL, is_recorded
from controller.api.route import Access
from controller.hub.join import JoinHandler
from controller.leader.housekeeping import Housekeeping
from controller.runtime.clock import SystemClock
from controller.store.access.audit_log import Entry, prune_entries, write_entries
from controller.store.access.keys import create_first_key, create_key
from controller.store.access.secret_keys import SecretKeys, new_key, parse_keys
from controller.store.access.tokens import create_token
from controller.store.core.database import Database
from schemas.wire import JOIN_PATH
from support.database.ledger import rows
from support.leading.served_api import ServedApi, served

PATH = "/api/v1/audit-log"
# These change nothing; a new one that is not a mere question must not be put here.
QUESTIONS = {"/api/v1/plan", "/api/v1/plan/policies"}
READS = {"GET", "HEAD", "OPTIONS"}


async def written(api: ServedApi) -> None:
    trail = api.app[TRAIL]
    async with asyncio.timeout(10):
        while trail.pending:  # noqa: ASYNC110 - a task writes it
            await asyncio.sleep(0.02)


async def entries(api: ServedApi, query: str = "") -> list[dict[str, Any]]:
    await written(api)
    found: list[dict[str, Any]] = (await api.get(f"{PATH}?limit=1000{query}"))["items"]
    return found


async def test_every_route_that_may_change_something_leaves_an_entry(api: ServedApi) -> None:
    changing = [route for route in all_routes("x") if route.method not in READS and not route.path.startswith("/v1/")]
    for route in changing:
        assert is_recorded(route) or route.path in QUESTIONS, f"{route.method} {route.path} leaves no entry"
    assert {route.path for route in changing} >= QUESTIONS
    recorded = [route for route in changing if is_recorded(route)]
    assert len(recorded) > 20
    for route in recorded:
        path = route.canonical.replace("{name}", "nothing").replace("{id}", "00000000-0000-0000-0000-000000000000")
        for part in ("index", "uuid", "alias", "worker", "gpu", "action"):
            path = path.replace("{" + part + "}", "0")
        await api.call(route.method, path, json={"nonsense": 1})
    found = {entry["action"] for entry in await entries(api)}
    assert {f"{route.method} {route.canonical}" for route in recorded} <= found


async def test_an_entry_says_which_key_from_where_what_and_the_outcome(api: ServedApi) -> None:
    headers = {"X-Request-ID": "r-1"}
    assert (await api.call("PUT", "/api/v1/secrets/hf", json={"value": "hf_very_secret"}, headers=headers))[0] == 204
    assert (await api.call("DELETE", "/api/v1/secrets/none"))[0] == 404
    assert (await api.call("DELETE", "/api/v1/secrets/hf", role="operator"))[0] == 403
    assert (await api.call("POST", "/api/v1/keys", json={"role": "viewer"}))[0] == 201
    _, refused, missing, done = await entries(api)
    assert done["action"] == "PUT /api/v1/secrets/{name}"
    assert (done["actor"], done["object"], done["outcome"], done["status"], done["request_id"]) == (
        "key:admin", "secrets/hf", "done", 204, "r-1",
    )  # fmt: skip
    assert done["address"] == "127.0.0.1"
    assert (missing["outcome"], missing["status"], missing["code"]) == ("refused", 404, "not_found")
    assert (refused["actor"], refused["code"]) == ("key:operator", "forbidden")


async def test_keys_and_secrets_never_stand_in_it(api: ServedApi, db: Database) -> None:
    await api.call("PUT", "/api/v1/secrets/hf", json={"value": "hf_very_secret"})
    _, made = await api.call("POST", "/api/v1/keys", json={"role": "viewer"})
    await api.call("DELETE", f"/api/v1/keys/{made['key']}")
    await api.call("POST", "/api/v1/session", json={"key": made["key"]})
    await written(api)
    text = str(await rows(db, "select * from audit_log"))
    assert "hf_very_secret" not in text
    assert made["key"] not in text
    assert "keys/[redacted]" in text
    login = next(entry for entry in await entries(api) if entry["action"] == "POST /api/v1/session")
    assert (login["actor"], login["outcome"]) == ("key:viewer", "done")


async def test_changes_of_keys_rights_and_secrets_are_recorded_before_they_are_answered(
    api: ServedApi, db: Database
) -> None:
    """Another controller's answer would see each entry at once: nothing waits for this one's writer."""
    _, made = await api.call("POST", "/api/v1/keys", json={"role": "viewer"})
    one = f"/api/v1/keys/{made['id']}"
    for method, path, body in (
        ("POST", "/api/v1/keys", {"role": "viewer"}),
        ("PATCH", one, {"name": "other"}),
        ("POST", f"{one}/rotate", {}),
        ("DELETE", one, None),
        ("POST", "/api/v1/tokens", {}),
        ("PUT", "/api/v1/secrets/hf", {"value": "x" * 9}),
        ("PATCH", "/api/v1/secrets/hf", {"admins_only": True}),
        ("DELETE", "/api/v1/secrets/hf", None),
        ("POST", "/api/v1/session", {"key": api.keys["viewer"]}),
    ):
        status, said = await api.call(method, path, json=body)
        assert status < 300, said
        (last,) = await rows(db, "select action, object, outcome from audit_log order by id desc limit 1")
        assert (last["action"].partition(" ")[0], last["object"], last["outcome"]) == (
            method, path.removeprefix("/api/v1/"), "done",
        )  # fmt: skip


async def test_a_change_that_cannot_be_recorded_is_not_acknowledged(
    api: ServedApi, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_trail, "_RECORD_LIMIT_S", 0.2)
    async with db.transaction() as connection:
        await connection.execute("lock table audit_log in share mode")
        status, said = await api.call("POST", "/api/v1/keys", json={"role": "viewer"})
        assert (status, said["error"]["code"], "key" in said) == (503, "not_recorded", False)
        assert (await api.call("POST", "/api/v1/deployments/none/stop"))[0] == 404  # waits for nothing
    found = await entries(api, "&object=keys")
    assert [(one["action"], one["outcome"]) for one in found] == [("POST /api/v1/keys", "done")]


async def test_what_the_host_makes_is_recorded(migrated: Database) -> None:
    first = await create_first_key(migrated)
    assert first is not None
    assert await create_first_key(migrated) is None
    with pytest.raises(OSError, match="full"):
        await create_key(migrated, "admin", keep=_full_disk, action="key.reset")
    found = await rows(migrated, "select actor, action, object, outcome from audit_log")
    assert found == [{"actor": "host", "action": "key.first", "object": f"keys/{first.id}", "outcome": "done"}]


def _full_disk(_key: str) -> None:
    raise OSError("full")


async def test_a_join_names_the_worker_and_its_address_and_no_token(db: Database) -> None:
    token = (await create_token(db)).token
    joining = web.post(JOIN_PATH, JoinHandler(db, SystemClock()).handle)
    async with served(db, more_routes=[joining]) as api:
        for given in (token, token, "gpj_wrong-token-unknown", 4):
            async with api.session.post(api.url + JOIN_PATH, json={"token": given, "name": "gpu-1"}) as answer:
                await answer.read()
        malformed, wrong, used, joined = await entries(api)
        assert {one["action"] for one in (malformed, wrong, used, joined)} == {"POST /api/v1/join"}
        assert (joined["actor"], joined["object"], joined["outcome"], joined["status"], joined["code"]) == (
            "agent:gpu-1", "workers/gpu-1", "done", 200, "",
        )  # fmt: skip
        assert joined["address"].startswith("127.0.0.1")
        for one in (used, wrong):
            assert (one["actor"], one["object"], one["outcome"], one["status"]) == ("", "workers/gpu-1", "refused", 401)
            assert one["code"]
        assert (malformed["object"], malformed["outcome"], malformed["status"]) == ("join", "refused", 400)
        assert [one["id"] for one in await entries(api, "&object=workers/gpu-1&outcome=done")] == [joined["id"]]
        assert [one["id"] for one in await entries(api, "&actor=gpu-1")] == [joined["id"]]
    text = str(await rows(db, "select * from audit_log"))
    assert token not in text
    assert token.partition(".")[0] not in text


async def test_strangers_cannot_fill_the_disk(api: ServedApi, db: Database) -> None:
    for _ in range(40):
        async with api.session.delete(api.url + "/api/v1/deployments/x", headers={"Authorization": "Bearer gpw_no"}):
            pass
    await written(api)
    (row,) = await rows(db, "select count(*) as n from audit_log where actor = ''")
    assert 1 <= row["n"] <= 10
    for _ in range(70):
        await api.call("DELETE", "/api/v1/keys/none", role="viewer")
    await written(api)
    (row,) = await rows(db, "select count(*) as n from audit_log where actor = 'key:viewer'")
    assert row["n"] == 60


async def test_filters_pages_and_access(api: ServedApi) -> None:
    for name in ("a", "b"):
        await api.call("PUT", f"/api/v1/secrets/{name}", json={"value": "x" * 9})
    await api.call("DELETE", "/api/v1/secrets/none")
    assert [one["object"] for one in await entries(api, "&object=secrets/a")] == ["secrets/a"]
    assert len(await entries(api, "&object=secrets&actor=admin&after=1h")) == 3
    assert await entries(api, "&actor=operator") == []
    assert [one["object"] for one in await entries(api, "&outcome=refused")] == ["secrets/none"]
    assert await entries(api, "&before=1h") == []
    first = await api.get(PATH + "?limit=2")
    second = await api.get(f"{PATH}?limit=2&cursor={first['next']}")
    assert [one["object"] for one in first["items"] + second["items"]] == ["secrets/none", "secrets/b", "secrets/a"]
    assert (await api.call("GET", PATH + "?outcome=odd"))[0] == 400
    for role in ("operator", "viewer", "inference"):
        assert (await api.call("GET", PATH, role=role))[0] == 403


async def test_old_entries_go(migrated: Database) -> None:
    async with migrated.transaction() as connection:
        await write_entries(connection, [Entry("key:a", "x", "done"), Entry("key:b", "x", "done")])
        await connection.execute("update audit_log set at = now() - interval '91 days' where actor = 'key:a'")
        await prune_entries(connection, keep_days=90)
    assert await rows(migrated, "select actor from audit_log") == [{"actor": "key:b"}]


@pytest.mark.parametrize("access", [Access.OPERATE, Access.ADMINISTER])
def test_all_that_only_operators_may_is_recorded(access: Access) -> None:
    assert all(is_recorded(one) for one in all_routes("x") if one.access is access and one.method not in READS)


async def test_it_is_verified_through_a_rotation_by_administrators_alone(db: Database) -> None:
    first, second = new_key(), new_key()
    stored = [first]
    keys = SecretKeys(lambda: parse_keys(",".join(stored)))
    async with served(db, secret_keys=keys) as api:
        path = f"{PATH}/verify"
        assert not (await api.get(path))["protected"]
        await api.call("PUT", "/api/v1/secrets/hf", json={"value": "x" * 9})
        housekeeping = Housekeeping(
            db, await _term(db), SystemClock(), audit_every_s=60, keep_events_days=30, keep_actions_days=30, keys=keys
        )
        await housekeeping.round()
        found = await api.get(path)
        assert (found["protected"], found["findings"], found["next"]) == (True, [], None)
        assert found["checked"] >= 1
        stored[:] = [second, first]
        keys.reload()
        assert (await api.call("POST", "/api/v1/secrets/rotate-key"))[0] == 200
        stored[:] = [second]
        keys.reload()
        await housekeeping.round()
        assert (await api.get(path))["findings"] == []
        gone = await rows(db, "delete from audit_log where object = 'secrets/hf' returning id")
        (finding,) = (await api.get(path))["findings"]
        assert (finding["kind"], finding["ids"]) == ("entries_removed", [row["id"] for row in gone])
        for role in ("operator", "viewer", "inference"):
            assert (await api.call("GET", path, role=role))[0] == 403
        assert (await api.call("GET", path + "?cursor=odd"))[0] == 400


async def _term(db: Database) -> int:
    (row,) = await rows(db, "select term from lease")
    return int(row["term"])
