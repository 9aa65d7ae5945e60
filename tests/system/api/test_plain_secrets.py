"""Secrets of a controller without a key: refused, or stored unencrypted on request, and shown until sealed."""

from typing import Any

import pytest

from controller.secrets_key import protect_secrets
from controller.store.access.secret_keys import NO_KEYS, SecretKeys, new_key, parse_keys
from controller.store.core.database import Database
from support.database.ledger import rows
from support.leading.served_api import served

PATH = "/api/v1/secrets/hf"
_KEY = new_key()


def with_key() -> SecretKeys:
    return SecretKeys(lambda: parse_keys(_KEY))


def shown(attention: Any) -> list[tuple[str, int]]:
    return [(one["code"], one["count"]) for one in attention["items"] if one["code"] == "secrets_plain"]


@pytest.mark.parametrize("body", [{"value": "top secret"}, {"value": "top secret", "plain": False}])
async def test_without_a_key_nothing_is_stored_unencrypted(migrated: Database, body: dict[str, object]) -> None:
    async with served(migrated, secret_keys=NO_KEYS) as api:
        status, answer = await api.call("PUT", PATH, json=body)
        assert (status, answer["error"]["code"]) == (409, "no_secrets_key")
        for word in ("GPUWARD_SECRETS_KEY_FILE", "head -c 32 /dev/urandom | base64", "--plain", "plain: true"):
            assert word in answer["error"]["message"]
        assert await rows(migrated, "select * from secrets") == []
        assert shown(await api.get("/api/v1/attention")) == []


async def test_insisted_on_it_is_stored_used_and_shown_until_a_start_with_a_key_seals_it(migrated: Database) -> None:
    async with served(migrated, secret_keys=NO_KEYS) as api:
        assert (await api.call("PUT", PATH, json={"value": "top secret", "plain": True}))[0] == 204
        assert shown(await api.get("/api/v1/attention")) == [("secrets_plain", 1)]
        (entry,) = (one for one in (await api.get("/api/v1/attention"))["items"] if one["code"] == "secrets_plain")
        assert "GPUWARD_SECRETS_KEY_FILE" in entry["advice"]
        refused, _ = await api.call("PUT", PATH, json={"value": "another one"})
        assert refused == 409, "a plain secret is replaced by a plain one only where that is insisted on too"
    await protect_secrets(migrated, with_key())
    async with served(migrated, secret_keys=with_key()) as api:
        assert shown(await api.get("/api/v1/attention")) == []
        assert await rows(migrated, "select value from secrets") == [{"value": None}]


async def test_the_command_of_the_condition_seals_what_was_stored_since_the_start(migrated: Database) -> None:
    async with served(migrated, secret_keys=NO_KEYS) as keyless:
        await keyless.call("PUT", PATH, json={"value": "top secret", "plain": True})
    async with served(migrated, secret_keys=with_key()) as api:
        assert shown(await api.get("/api/v1/attention")) == [("secrets_plain", 1)]
        assert (await api.call("POST", "/api/v1/secrets/rotate-key"))[0] == 200
        assert shown(await api.get("/api/v1/attention")) == []


async def test_with_a_key_a_secret_is_encrypted_whatever_is_asked(migrated: Database) -> None:
    async with served(migrated, secret_keys=with_key()) as api:
        for name, plain in (("a", True), ("b", False)):
            put = await api.call("PUT", f"/api/v1/secrets/{name}", json={"value": "top secret", "plain": plain})
            assert put[0] == 204
    assert await rows(migrated, "select value from secrets") == [{"value": None}] * 2


async def test_a_keyless_controller_among_others_stores_none_however_asked(migrated: Database) -> None:
    async with served(migrated, secret_keys=with_key()) as api:
        await api.call("PUT", PATH, json={"value": "top secret"})
    async with served(migrated, secret_keys=NO_KEYS) as keyless:
        status, answer = await keyless.call("PUT", "/api/v1/secrets/other", json={"value": "x", "plain": True})
        assert (status, answer["error"]["code"]) == (409, "no_secrets_key")
        _, answer = await keyless.call("PUT", "/api/v1/secrets/other", json={"value": "x"})
        assert "plain" not in answer["error"]["message"], "it would be refused too"
    assert len(await rows(migrated, "select * from secrets")) == 1
