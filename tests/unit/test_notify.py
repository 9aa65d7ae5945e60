"""A hint names all that changed, in as many payloads as that takes; only very many become all of a kind."""

import uuid

import pytest

from controller.live.change_fanout import ChangeFanout
from controller.runtime.feed import parse_hint
from controller.store.core.events import MAX_IDS, payloads

POSTGRES_BYTES = 8_000  # which NOTIFY refuses


def ids(number: int) -> list[str]:
    return [str(uuid.UUID(int=n)) for n in range(number)]


@pytest.mark.parametrize("number", [1, 213, 214, 1_000, MAX_IDS])
async def test_each_of_many_changes_reaches_subscribers_by_its_id(number: int) -> None:
    hints = ChangeFanout()
    with hints.subscribe() as subscription:
        for payload in payloads({"status": [*ids(number), ids(1)[0]]}):
            assert len(payload.encode()) < POSTGRES_BYTES
            for kind, id_ in parse_hint(payload) or ():
                hints.publish(kind, id_)
        pending = await subscription.take()
    assert not pending.resync
    assert pending.of("status") == set(ids(number))


def test_the_payloads_are_few_and_in_the_order_of_their_kinds() -> None:
    sent = payloads({"gone": [f"{one}@1.5" for one in ids(300)], "deployment": ids(1_000), "key": ()})
    assert [payload.split(" ", 1)[0] for payload in sent] == ["gone"] * 2 + ["deployment"] * 5


@pytest.mark.parametrize("wanted", [ids(MAX_IDS + 1), ["x" * POSTGRES_BYTES], ["\u00e4" * 4_000]])
def test_too_many_ids_or_a_long_one_become_all_of_the_kind(wanted: list[str]) -> None:
    assert payloads({"worker": wanted, "status": ["a"]}) == ["worker *", "status a"]
