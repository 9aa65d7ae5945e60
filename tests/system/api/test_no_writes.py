"""While the database takes no writes, an invalid manifest is refused as such, and a valid one with 503."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controller.store.core.database import Database
from schemas.manifest.deployment import RETIRED_ARGS
from support.api_calls import deployment
from support.leading.served_api import ServedApi

RULE = {"min_gpu_utilization": 10, "time_window": "10m"}
HOOK = {"url": "https://hooks.example.com/x", "secret": "none-such"}


@asynccontextmanager
async def _read_only(db: Database) -> AsyncIterator[None]:
    """As on a standby: each transaction is read-only unless it asks for more."""
    async with db.connection() as connection:
        name = await connection.fetchval("select current_database()")
        await connection.execute(f'alter database "{name}" set default_transaction_read_only = on')
    await db.pool.expire_connections()
    yield


@asynccontextmanager
async def _outdated(db: Database) -> AsyncIterator[None]:
    """As after the upgrade of another controller."""
    db.refuse_writes("the schema is newer")
    yield
    db.refuse_writes(None)


STATES: dict[str, Callable[[Database], Any]] = {"read-only": _read_only, "outdated": _outdated}
INVALID = {
    "unknown policy": {"utilization_policy": "none-such"},
    "own name": {"serving": {"aliases": ["a"]}},
    "taken name": {"serving": {"aliases": ["chat"]}},
}


async def put(api: ServedApi, name: str, **fields: Any) -> tuple[int, Any]:
    manifest = deployment(name, **fields)
    body = {key: value for key, value in manifest.items() if key not in ("name", "kind")}
    return await api.call("PUT", f"/api/v1/deployments/{name}", role="operator", json=body)


async def post(api: ServedApi, name: str, **fields: Any) -> tuple[int, Any]:
    return await api.call("POST", "/api/v1/apply", role="operator", json={"manifests": [deployment(name, **fields)]})


@pytest.mark.parametrize("apply", [put, post])
@pytest.mark.parametrize("state", STATES)
async def test_an_invalid_manifest_is_400_while_nothing_is_written(
    api: ServedApi, db: Database, state: str, apply: Callable[..., Awaitable[tuple[int, Any]]]
) -> None:
    assert (await post(api, "chat"))[0] == 200
    async with STATES[state](db):
        for fields in INVALID.values():
            status, body = await apply(api, "a", **fields)
            assert (status, body["error"]["code"]) == (400, "invalid"), body
            assert body["error"]["details"]["problems"]
        status, body = await apply(api, "a")
        assert (status, body["error"]["code"]) == (503, "database_unavailable"), body


@pytest.mark.parametrize("state", STATES)
async def test_an_invalid_policy_is_400_while_nothing_is_written(api: ServedApi, db: Database, state: str) -> None:
    path = "/api/v1/policies/p"
    async with STATES[state](db):
        for fields, expected in (({"webhook": HOOK}, 400), ({}, 503)):
            status, body = await api.call("PUT", path, role="operator", json={**RULE, **fields})
            assert status == expected, body


async def test_a_stored_spec_of_a_newer_version_is_not_judged(api: ServedApi, db: Database) -> None:
    assert (await post(api, "chat"))[0] == 200
    async with db.connection() as connection:
        await connection.execute("""update deployments set spec = spec || '{"of_a_newer_version": 1}'""")
    async with _outdated(db):
        status, body = await put(api, "chat", engine="simulated", args={min(RETIRED_ARGS): 1})
        assert (status, body["error"]["code"]) == (503, "database_unavailable"), body
