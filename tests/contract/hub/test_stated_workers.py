"""What administrators and join tokens state of a worker counts, whatever its host says."""

from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from controller.hub import agreement, handshake
from controller.hub.proxy_address import AdvertiseRefusedError, HostTrust, literal
from controller.store.access.tokens import TokenTerms, create_token, redeem
from controller.store.migrations import versions
from controller.store.views.workers import worker_by_name
from controller.store.workers.sessions import Identity
from controller.store.workers.stated import state_worker
from rig.agent_messages import hello
from schemas.wire import Hello, InventoryChanged
from support.leading.served_hub import HubUnderTest, eventually

_FILE: Final = Path(versions.__file__).with_name("0047_stated_workers.sql")
_COPY: Final = _FILE.read_text(encoding="utf-8").split("--;;")[-1]


def says(labels: dict[str, str], **fields: Any) -> Hello:
    first = hello(**fields)
    host = replace(first.inventory.host, labels=labels)
    return replace(first, inventory=replace(first.inventory, host=host))


async def joined(hub: HubUnderTest, terms: TokenTerms) -> Identity:
    answer = await redeem(hub.database, (await create_token(hub.database, terms=terms)).token, "gpu-1")
    return Identity(answer.worker_uid, "gpu-1", deleted=False)


async def stored(hub: HubUnderTest) -> dict[str, str]:
    labels = await hub.value("select labels from workers")
    return {key: value for key, value in labels.items() if not key.startswith("gpuward/")}


async def test_trusted_labels_come_from_the_token_and_administrators(hub: HubUnderTest) -> None:
    identity = await joined(hub, TokenTerms(labels={"gpuward.io/zone": "a"}))
    lie = says({"gpuward.io/zone": "secret", "gpuward.io/tier": "gold", "rack": "7"})
    await handshake.accept(hub.database, identity, lie, "10.0.0.7")
    assert await stored(hub) == {"gpuward.io/zone": "a", "rack": "7"}

    await state_worker(hub.database, "gpu-1", {"gpuward.io/zone": None, "gpuward.io/tier": "iron"}, None)
    assert await stored(hub) == {"gpuward.io/tier": "iron", "rack": "7"}, "at once"
    await handshake.accept(hub.database, identity, lie, "10.0.0.7")
    assert await stored(hub) == {"gpuward.io/tier": "iron", "rack": "7"}


async def test_a_later_inventory_changes_no_trusted_label(hub: HubUnderTest) -> None:
    await hub.add_worker()
    connection = await hub.connect(first=says({"rack": "7"}))
    await state_worker(hub.database, "gpu-1", {"gpuward.io/zone": "a"}, None)
    inventory = says({"gpuward.io/zone": "b", "rack": "8"}).inventory
    await connection.send(InventoryChanged(inventory=inventory))

    async def taken() -> bool:
        return (await stored(hub)).get("rack") == "8"

    await eventually(taken, "the inventory is written")
    assert await stored(hub) == {"gpuward.io/zone": "a", "rack": "8"}


async def test_which_labels_are_trusted_is_a_setting(hub: HubUnderTest) -> None:
    identity = await joined(hub, TokenTerms(labels={"team": "x", "gpuward.io/zone": "a"}))
    said = says({"team": "y", "gpuward.io/zone": "b"})
    trust = HostTrust(labels=("team", "other-*"))
    await handshake.accept(hub.database, identity, said, "10.0.0.7", trust=trust)
    assert await stored(hub) == {"team": "x", "gpuward.io/zone": "b"}
    await handshake.accept(hub.database, identity, said, "10.0.0.7", trust=HostTrust(labels=("*",)))
    labels = await hub.value("select labels from workers")
    assert labels["team"] == "x"
    assert labels["gpuward/hostname"], "the agent's own stay its own"


async def test_values_at_the_upgrade_stay(hub: HubUnderTest) -> None:
    worker = await hub.add_worker()
    async with hub.database.transaction() as connection:
        before = {"gpuward.io/zone": "a", "team": "x", "gpuward/driver": "1"}
        await connection.execute("update workers set labels = $1", before)
        await connection.execute(_COPY)
    identity = Identity(worker, "gpu-1", deleted=False)
    said = says({"gpuward.io/zone": "b", "gpuward.io/new": "c", "team": "y"}, advertise="10.9.0.5:7000")
    behind = [address] if (address := literal("10.9.0.5")) else []
    await handshake.accept(hub.database, identity, said, "10.0.0.7", addresses=behind)
    assert await stored(hub) == {"gpuward.io/zone": "a", "team": "y"}
    assert await hub.value("select proxy_address from workers") == "10.9.0.5:7000", "any address, as before"


async def test_another_address_needs_a_network(hub: HubUnderTest) -> None:
    identity = await joined(hub, TokenTerms())
    first, address = hello(advertise="10.9.0.5:7000"), literal("10.9.0.5")
    assert address is not None
    with pytest.raises(AdvertiseRefusedError):
        await handshake.accept(hub.database, identity, first, "10.0.0.7", addresses=[address])
    assert await hub.value("select session from workers") == 0
    # No later address of the agent's own changes what is known of another one.
    await handshake.accept(hub.database, identity, hello(), "10.0.0.7")
    with pytest.raises(AdvertiseRefusedError):
        await handshake.accept(hub.database, identity, first, "10.0.0.7", addresses=[address])
    await state_worker(hub.database, "gpu-1", {}, ["10.9.0.5/32"])
    await handshake.accept(hub.database, identity, first, "10.0.0.7", addresses=[address])
    assert await hub.value("select proxy_address from workers") == "10.9.0.5:7000"


async def test_a_refusal_is_shown_until_the_address_is_accepted(hub: HubUnderTest) -> None:
    identity = await joined(hub, TokenTerms())
    for _ in range(3):
        await agreement.record_refusal(hub.database, identity, "10.9.0.5: no", agreement.ADVERTISE_REFUSED)
    assert await hub.value("select count(*) from events where reason = 'advertise_refused'") == 1
    async with hub.database.connection() as connection:
        (condition,) = (await worker_by_name(connection, "gpu-1")).status.conditions
    assert (condition.type, condition.status, condition.message) == ("Reachable", "false", "10.9.0.5: no")
    await handshake.accept(hub.database, identity, hello(), "10.0.0.7")
    assert await hub.value("select conditions from workers") == []
