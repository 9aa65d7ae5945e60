"""Keys whose time ends while the database is away."""

import asyncio
from typing import Any

import pytest

from controller.live import key_ring
from controller.live.change_fanout import ChangeFanout
from controller.live.key_ring import KeyRing
from controller.store.access.key_reads import Principal, hash_secret

pytestmark = pytest.mark.looptime

LASTS_S = 60.0


class Away:
    """A database that answers until it is taken away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Principal]) -> None:
        self.keys = {hash_secret(text): owner for text, owner in keys.items()}
        self.away = False
        monkeypatch.setattr(key_ring, "count_keys", self._count)
        monkeypatch.setattr(key_ring, "read_keys", self._read)

    async def connect(self) -> Any:
        if self.away:
            raise ConnectionRefusedError
        return self

    def terminate(self) -> None:
        pass

    async def _count(self, _: Any) -> tuple[int]:
        if self.away:
            raise ConnectionResetError
        return (len(self.keys),)

    async def _read(self, _: Any) -> dict[bytes, Principal]:
        return dict(self.keys)


async def test_a_key_that_expires_while_the_database_is_away_ends_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    lasting, ending = Principal("lasting", "a", "viewer"), Principal("ending", "b", "viewer", expires_in_s=LASTS_S)
    rotated = Principal("rotated", "c", "viewer")
    old = Principal("rotated", "c", "viewer", expires_in_s=LASTS_S)
    database = Away(monkeypatch, {"1": lasting, "2": ending, "3": rotated, "4": old})
    ended: list[frozenset[str]] = []
    ring = KeyRing(database.connect, ChangeFanout(), ended=ended.append)
    ring.start()
    await asyncio.sleep(1)
    database.away = True
    await asyncio.sleep(LASTS_S - 5)
    assert ended == []
    assert ring.owner(hash_secret("2")) == ending
    await asyncio.sleep(10)
    assert ended == [{"ending"}], "once, and not the key that is valid in another form"
    assert ring.owner(hash_secret("2")) is ring.owner(hash_secret("4")) is None
    assert ring.owner(hash_secret("3")) == rotated
    del database.keys[hash_secret("2")]
    database.away = False
    await asyncio.sleep(5)
    assert ended == [{"ending"}]
    assert ring.owner(hash_secret("1")) == lasting
    await ring.stop()
