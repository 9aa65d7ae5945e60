"""The values of secrets in memory: those that a key opens, and the earlier ones while the database is away."""

from contextlib import asynccontextmanager
from typing import Any

import pytest

from controller.live.change_fanout import ChangeFanout
from controller.live.known_secrets import KnownSecrets
from controller.store.access.secret_keys import SecretKeys, new_key, parse_keys
from controller.store.access.secrets import put_secret
from controller.store.core.database import Database


def keys(text: str) -> SecretKeys:
    return SecretKeys(lambda: parse_keys(text))


async def test_values_that_no_key_opens_are_left_out(migrated: Database) -> None:
    mine, lost = keys(new_key()), keys(new_key())
    await put_secret(migrated, "mine", "value-of-mine", mine)
    await put_secret(migrated, "lost", "value-of-lost", lost)
    known = KnownSecrets(migrated, ChangeFanout(), mine)
    assert await known.refresh()
    assert known.redaction().holds("value-of-mine")
    assert not known.redaction().holds("value-of-lost")


async def test_values_stay_while_the_database_is_away(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await put_secret(migrated, "hf", "first-value")
    changes = ChangeFanout()
    known = KnownSecrets(migrated, changes)
    with changes.subscribe() as told:
        assert await known.refresh()
        assert (await told.take()).resync, "what was told before is told anew"
        before = known.redaction()
        assert await known.refresh()
        assert known.redaction() is before, "nothing has changed"

        @asynccontextmanager
        async def away() -> Any:
            raise ConnectionError("the database is away")
            yield

        with monkeypatch.context() as patched:
            patched.setattr(migrated, "connection", away)
            assert not await known.refresh()
        assert known.redaction() is before
        await put_secret(migrated, "hf", "second-value")
        assert await known.refresh()
    assert known.redaction().holds("second-value")
    assert not known.redaction().holds("first-value")
