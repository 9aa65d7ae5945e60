"""Keys, join tokens and secrets: shown once, stored hashed, revoked and expired in time."""

import asyncio

import pytest

from controller.store.access.key_reads import find_keys, hash_secret, read_keys
from controller.store.access.keys import create_first_key, create_key, list_keys, revoke_key
from controller.store.access.secrets import StoredSecret, delete_secret, put_secret, resolve_secrets
from controller.store.access.tokens import TokenTerms, create_token, list_tokens, redeem, revoke_token
from controller.store.core.database import Database
from controller.store.core.refusals import LastAdminKeyError, NotFoundError, TokenRefusedError, WorkerNameTakenError
from controller.store.workers.maintenance import delete_worker
from schemas.wire import new_credential
from support.database.ledger import rows


async def test_a_key_is_stored_as_its_hash_alone(migrated: Database) -> None:
    made = await create_key(migrated, "viewer", name="dashboard")
    (row,) = await rows(migrated, "select * from api_keys")
    assert made.key.startswith("gpw_")
    assert made.key.encode() not in row["hash"]
    assert len(row["hash"]) == 32
    async with migrated.connection() as connection:
        found = await find_keys(connection, [hash_secret(made.key), hash_secret("gpw_other")])
        assert found == await read_keys(connection)
    principal = found[hash_secret(made.key)]
    assert (principal.name, principal.role, principal.key_id) == ("dashboard", "viewer", made.id)
    (listed,) = await list_keys(migrated)
    assert not hasattr(listed, "key")


async def test_a_revoked_key_is_no_longer_read(migrated: Database) -> None:
    made, _ = await create_key(migrated, "admin"), await create_key(migrated, "admin")
    first = await revoke_key(migrated, made.id)
    assert (await revoke_key(migrated, made.id)).revoked_at == first.revoked_at
    async with migrated.connection() as connection:
        assert hash_secret(made.key) not in await read_keys(connection)
        assert await find_keys(connection, [hash_secret(made.key)]) == {}
    with pytest.raises(NotFoundError):
        await revoke_key(migrated, "no-uuid")


async def test_the_last_administrators_key_stays(migrated: Database) -> None:
    first, second = await create_key(migrated, "admin", name="a"), await create_key(migrated, "admin", name="b")
    operator = await create_key(migrated, "operator")
    await revoke_key(migrated, first.id)
    with pytest.raises(LastAdminKeyError, match="gpuward key create --role admin"):
        await revoke_key(migrated, second.id)
    await revoke_key(migrated, first.id)  # once more, which changes nothing
    await revoke_key(migrated, operator.id)
    third = await create_key(migrated, "admin")
    await revoke_key(migrated, second.id)
    async with migrated.connection() as connection:
        assert {one.key_id for one in (await read_keys(connection)).values()} == {third.id}


async def test_of_revocations_that_meet_one_is_refused(migrated: Database) -> None:
    for _ in range(5):
        await create_key(migrated, "admin")
        await create_key(migrated, "admin")
        valid = [one.id for one in await list_keys(migrated) if one.revoked_at is None]
        answers = await asyncio.gather(*(revoke_key(migrated, one) for one in valid), return_exceptions=True)
        assert [type(answer) for answer in answers if isinstance(answer, BaseException)] == [LastAdminKeyError]
        assert len([one for one in await list_keys(migrated) if one.revoked_at is None]) == 1


async def test_concurrent_starts_create_one_first_key(migrated: Database) -> None:
    made = await asyncio.gather(*(create_first_key(migrated) for _ in range(4)))
    (only,) = [key for key in made if key is not None]
    assert only.role == "admin"
    await create_key(migrated, "admin")
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


async def test_a_join_token_joins_as_many_hosts_as_it_says(migrated: Database) -> None:
    token = (await create_token(migrated, uses=3)).token
    answers = await asyncio.gather(*(redeem(migrated, token, f"w{n}") for n in range(6)), return_exceptions=True)
    assert sum(isinstance(answer, TokenRefusedError) for answer in answers) == 3
    assert len(await rows(migrated, "select 1 from workers")) == 3
    with pytest.raises(TokenRefusedError):
        await redeem(migrated, token, "late")
    (listed,) = await list_tokens(migrated)
    assert (listed.uses, listed.max_uses) == (3, 3)


async def test_a_taken_name_uses_up_nothing(migrated: Database) -> None:
    token = (await create_token(migrated, uses=2)).token
    await redeem(migrated, token, "a")
    with pytest.raises(WorkerNameTakenError):
        await redeem(migrated, token, "a")
    assert (await redeem(migrated, token, "b")).worker == "b"


async def test_what_an_older_controller_has_redeemed_is_used_up(migrated: Database) -> None:
    """It knows no number of uses and writes only when and by which host."""
    token = (await create_token(migrated)).token
    await rows(migrated, "update join_tokens set used_at = now(), used_by = 'w'")
    with pytest.raises(TokenRefusedError):
        await redeem(migrated, token, "other")


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
    with pytest.raises(WorkerNameTakenError, match=r"gpuward delete worker w, .*gpuward join-token create --name w"):
        await redeem(migrated, token, "w")
    assert (await redeem(migrated, token, "v")).worker == "v"


async def test_a_deleted_name_needs_a_token_for_it(migrated: Database) -> None:
    await redeem(migrated, (await create_token(migrated)).token, "w")
    await delete_worker(migrated, "w")
    any_name = (await create_token(migrated)).token
    with pytest.raises(WorkerNameTakenError, match="gpuward join-token create --name w"):
        await redeem(migrated, any_name, "w")
    assert (await redeem(migrated, any_name, "v")).worker == "v"
    named = (await create_token(migrated, terms=TokenTerms("w"))).token
    for other in ("v", "new"):
        with pytest.raises(TokenRefusedError):
            await redeem(migrated, named, other)
    assert (await redeem(migrated, named, "w")).worker == "w"
    assert [one.name for one in await list_tokens(migrated)] == [None, None, "w"]


async def test_a_join_is_repeated_whatever_has_become_of_its_token(migrated: Database) -> None:
    ends = ["update join_tokens set revoked_at = now()", "update join_tokens set expires_at = now()"]
    for name, end in zip(("v", "w"), ends, strict=True):
        token, chosen = (await create_token(migrated, uses=2)).token, new_credential()
        first = await redeem(migrated, token, name, chosen)
        await rows(migrated, end)
        assert await redeem(migrated, token, name, chosen) == first
        with pytest.raises(TokenRefusedError):
            await redeem(migrated, token, name, new_credential())
        await delete_worker(migrated, name)
        with pytest.raises(TokenRefusedError):
            await redeem(migrated, token, name, chosen)


async def test_secrets_are_replaced_resolved_and_removed(migrated: Database) -> None:
    await put_secret(migrated, "hf", "one")
    await put_secret(migrated, "hf", "two")
    assert await resolve_secrets(migrated, ["hf", "missing"]) == {"hf": StoredSecret("two")}
    await delete_secret(migrated, "hf")
    assert await resolve_secrets(migrated, ["hf"]) == {}
    with pytest.raises(NotFoundError):
        await delete_secret(migrated, "hf")
