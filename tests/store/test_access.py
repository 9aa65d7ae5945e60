"""Keys, join tokens and secrets: shown once, stored hashed, revoked and expired in time."""

import asyncio

import pytest

from controller.store.access.keys import KeyRing, create_first_key, create_key, list_keys, revoke_key
from controller.store.access.secrets import delete_secret, put_secret, resolve_secrets
from controller.store.access.tokens import create_token, list_tokens, redeem, revoke_token
from controller.store.core.database import Database
from controller.store.core.refusals import NotFoundError, TokenRefusedError, WorkerNameTakenError
from controller.store.workers.maintenance import delete_worker
from support.database.ledger import rows


async def test_a_key_is_stored_as_its_hash_alone(migrated: Database) -> None:
    made = await create_key(migrated, "viewer", name="dashboard")
    (row,) = await rows(migrated, "select * from api_keys")
    assert made.key.startswith("gpw_")
    assert made.key.encode() not in row["hash"]
    assert len(row["hash"]) == 32
    principal = await KeyRing(migrated).authenticate(made.key)
    assert principal is not None
    assert (principal.name, principal.role, principal.key_id) == ("dashboard", "viewer", made.id)
    (listed,) = await list_keys(migrated)
    assert not hasattr(listed, "key")


@pytest.mark.parametrize("key", ["", "gpw_", "gpw_wrong", "x" * 100_000, "gpj_abc", "gpw_\x00"])
async def test_an_invalid_key_has_no_principal(migrated: Database, key: str) -> None:
    assert await KeyRing(migrated).authenticate(key) is None


async def test_a_revoked_key_ends_within_the_cache_time(migrated: Database) -> None:
    now = 0.0
    ring = KeyRing(migrated, ttl_s=3.0, monotonic=lambda: now)
    made = await create_key(migrated, "admin")
    assert await ring.authenticate(made.key) is not None
    first = await revoke_key(migrated, made.id)
    assert (await revoke_key(migrated, made.id)).revoked_at == first.revoked_at
    now = 2.9
    assert await ring.authenticate(made.key) is not None, "remembered"
    now = 3.0
    assert await ring.authenticate(made.key) is None
    with pytest.raises(NotFoundError):
        await revoke_key(migrated, "no-uuid")


async def test_concurrent_starts_create_one_first_key(migrated: Database) -> None:
    made = await asyncio.gather(*(create_first_key(migrated) for _ in range(4)))
    (only,) = [key for key in made if key is not None]
    assert only.role == "admin"
    await revoke_key(migrated, only.id)
    assert await create_first_key(migrated) is None


async def test_a_join_token_is_valid_once(migrated: Database) -> None:
    token = (await create_token(migrated)).token
    answers = await asyncio.gather(
        *(redeem(migrated, token, f"w{n}") for n in range(5)), return_exceptions=True
    )  # fmt: skip
    joined = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(joined) == 1
    assert sum(isinstance(answer, TokenRefusedError) for answer in answers) == 4
    (worker,) = await rows(migrated, "select name, phase, credential_hash, proxy_secret from workers")
    assert worker["name"] == joined[0].worker
    assert worker["phase"] == "joining"
    assert joined[0].credential.encode() not in worker["credential_hash"]
    assert len(worker["proxy_secret"]) >= 32
    (listed,) = await list_tokens(migrated)
    assert listed.used_by == joined[0].worker


async def test_expired_revoked_and_unknown_tokens_are_refused_alike(migrated: Database) -> None:
    expired = await create_token(migrated, ttl_s=-1)
    revoked = await create_token(migrated)
    await revoke_token(migrated, revoked.id)
    messages = set()
    for token in (expired.token, revoked.token, "gpj_unknown"):
        with pytest.raises(TokenRefusedError) as refusal:
            await redeem(migrated, token, "w")
        messages.add(str(refusal.value))
    assert len(messages) == 1
    assert await rows(migrated, "select 1 from workers") == []


async def test_a_taken_name_is_refused_and_the_token_stays_good(migrated: Database) -> None:
    await redeem(migrated, (await create_token(migrated)).token, "w")
    token = (await create_token(migrated)).token
    with pytest.raises(WorkerNameTakenError, match="gpuward delete worker w"):
        await redeem(migrated, token, "w")
    await delete_worker(migrated, "w")
    assert (await redeem(migrated, token, "w")).worker == "w"


async def test_secrets_are_replaced_resolved_and_removed(migrated: Database) -> None:
    await put_secret(migrated, "hf", "one")
    await put_secret(migrated, "hf", "two")
    assert await resolve_secrets(migrated, ["hf", "missing"]) == {"hf": "two"}
    await delete_secret(migrated, "hf")
    assert await resolve_secrets(migrated, ["hf"]) == {}
    with pytest.raises(NotFoundError):
        await delete_secret(migrated, "hf")
