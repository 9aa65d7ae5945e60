"""Secrets are encrypted under keys that the database does not hold, and are for some deployments alone."""

import base64

import pytest

from controller.store.access.secret_keys import SecretKeys, UnreadableSecretError, new_key, parse_keys
from controller.store.access.secrets import (
    list_secrets,
    put_secret,
    resolve_secrets,
    scope_secret,
    seal_all,
    unreadable_secrets,
)
from controller.store.core.database import Database
from controller.store.core.events import acting
from controller.store.core.refusals import NoSecretsKeyError, NotFoundError
from controller.store.deployments.creations import Creations
from schemas.manifest.parse import parse_spec
from schemas.manifest.problems import ManifestError
from support.database.ledger import rows

FIRST, SECOND = new_key(), new_key()


def keys(*texts: str) -> SecretKeys:
    return SecretKeys(lambda: parse_keys("\n".join(texts)) if texts else ())


async def value_of(database: Database, name: str, given: SecretKeys) -> str:
    found = (await resolve_secrets(database, [name], given))[name]
    assert not found.problem, found.problem
    return found.value


async def test_a_value_is_not_in_the_database(migrated: Database) -> None:
    await put_secret(migrated, "hf", "hf_top_secret", keys(FIRST))
    (row,) = await rows(migrated, "select * from secrets")
    assert row["value"] is None
    assert b"top_secret" not in row["sealed"]
    assert row["key_id"] == keys(FIRST).current
    (dump,) = await rows(migrated, "select string_agg(s::text, '') as text from (select * from secrets) s")
    assert FIRST not in dump["text"]
    assert base64.b64decode(FIRST).hex() not in dump["text"]
    assert await value_of(migrated, "hf", keys(FIRST)) == "hf_top_secret"


async def test_a_value_in_another_row_or_under_another_key_does_not_open(migrated: Database) -> None:
    await put_secret(migrated, "hf", "one", keys(FIRST))
    await put_secret(migrated, "other", "two", keys(FIRST))
    async with migrated.transaction() as connection:
        await connection.execute(
            "update secrets set sealed = (select sealed from secrets where name = 'hf') where name = 'other'"
        )
    assert "damaged" in (await resolve_secrets(migrated, ["other"], keys(FIRST)))["other"].problem
    without = await resolve_secrets(migrated, ["hf"], keys(SECOND))
    assert without["hf"].value == ""
    assert f"key {keys(FIRST).current}, which this controller does not have" in without["hf"].problem
    with pytest.raises(UnreadableSecretError):
        keys(FIRST).open("hf", keys(FIRST).current, b"")


async def test_a_rotation_keeps_old_keys_readable_until_all_is_encrypted_anew(migrated: Database) -> None:
    for n in range(205):
        await put_secret(migrated, f"s-{n:03}", f"value {n}", keys(FIRST))
    both = keys(SECOND, FIRST)
    assert await value_of(migrated, "s-007", both) == "value 7", "the old key still opens it"
    assert await seal_all(migrated, both) == (205, [])
    assert await seal_all(migrated, both) == (0, [])
    assert await value_of(migrated, "s-204", keys(SECOND)) == "value 204", "the old key may go"


async def test_plain_values_of_older_versions_are_encrypted(migrated: Database) -> None:
    await put_secret(migrated, "old", "as it is")
    assert [one.encrypted for one in await list_secrets(migrated)] == [False]
    assert await seal_all(migrated, keys()) == (0, []), "without a key nothing changes"
    assert await seal_all(migrated, keys(FIRST), plain_only=True) == (1, [])
    assert await rows(migrated, "select value from secrets") == [{"value": None}]
    assert await value_of(migrated, "old", keys(FIRST)) == "as it is"


async def test_without_the_key_others_are_read_and_the_unreadable_ones_are_named(migrated: Database) -> None:
    await put_secret(migrated, "lost", "x", keys(FIRST))
    await put_secret(migrated, "there", "y", keys(SECOND))
    async with migrated.connection() as connection:
        assert await unreadable_secrets(connection, keys(SECOND)) == ["lost"]
    assert [(one.name, one.readable) for one in await list_secrets(migrated, keys(SECOND))] == [
        ("lost", False),
        ("there", True),
    ]
    assert await value_of(migrated, "there", keys(SECOND)) == "y"
    assert await seal_all(migrated, keys(FIRST, new_key())) == (0, ["there"])
    with pytest.raises(NoSecretsKeyError, match="GPUWARD_SECRETS_KEY_FILE"):
        await put_secret(migrated, "plain", "z", keys())


async def test_keys_that_another_controller_rotated_are_read_again(migrated: Database) -> None:
    texts = [FIRST]
    mine = SecretKeys(lambda: parse_keys("\n".join(texts)))
    texts.insert(0, SECOND)
    await put_secret(migrated, "hf", "new", keys(SECOND))
    assert await value_of(migrated, "hf", mine) == "new"
    texts[:] = ["not a key"]
    assert await value_of(migrated, "hf", mine) == "new", "known keys stay in use"


@pytest.mark.parametrize(("text", "said"), [
    ("", "no key"), ("!!", "not base64"), ("YWJj", "has 3 bytes"), ("A" * 43 + "=,YWJj", "key 2 has 3 bytes"),
])  # fmt: skip
def test_malformed_keys(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        parse_keys(text)
    assert not text or text not in str(error.value), "a key is never repeated"


def with_secret() -> dict[str, object]:
    return {"model": "path:/models/m", "engine": "simulated", "env": {"HF_TOKEN": {"secret": "hf"}}}


async def test_a_deployment_out_of_a_secrets_scope_is_refused(migrated: Database) -> None:
    await put_secret(migrated, "hf", "x", deployments=["team-a-*"])
    creations = Creations(migrated)

    async def apply(name: str) -> None:
        spec = parse_spec(with_secret(), name=name)
        await creations.apply(name, spec, input_hash="", if_match=None, longest_window_s=600)

    await apply("team-a-chat")
    with pytest.raises(ManifestError) as refused:
        await apply("chat")
    (problem,) = refused.value.problems
    assert problem.path == "env.HF_TOKEN"
    assert "is for deployments named team-a-*" in problem.message
    await scope_secret(migrated, "hf", deployments=[], admins_only=True)
    with acting("key:op", role="operator"), pytest.raises(ManifestError, match="administrators"):
        await apply("chat")
    with acting("key:root", role="admin"):
        await apply("chat")
    with acting("key:op", role="operator"), pytest.raises(ManifestError, match="administrators"):
        await apply("chat")
    with pytest.raises(NotFoundError):
        await scope_secret(migrated, "none", deployments=[], admins_only=None)


async def test_setting_a_value_leaves_the_scope(migrated: Database) -> None:
    await put_secret(migrated, "hf", "x", deployments=["a-*"], admins_only=True)
    await put_secret(migrated, "hf", "y")
    (one,) = await list_secrets(migrated)
    assert (one.deployments, one.admins_only) == (["a-*"], True)
