"""The port at which the ranks of a gang meet: held with the claims, so no two gangs have one on the same host."""

from typing import Any

import pytest

from controller.decide import start_command
from controller.decide.start_command import RENDEZVOUS_PORTS, rendezvous_port
from controller.domain.placement import Need, need_to_json
from controller.store.core.database import Database
from support.database.ledger import add_deployment, add_host, rows
from support.leading.leader_term import LeaderTerm

GANG: dict[str, Any] = {
    "resources": {"gpus": 2, "max_workers": 2},
    "parallel": {"tp": 1, "pp": 2},
    "placement": {"workers": ["w1", "w2"], "all_of": True},
}


@pytest.fixture
def few_ports(monkeypatch: pytest.MonkeyPatch) -> range:
    """So few that gangs would collide."""
    ports = range(10_000, 10_006)
    monkeypatch.setattr(start_command, "RENDEZVOUS_PORTS", ports)
    return ports


async def ports(db: Database) -> list[int]:
    found = await rows(db, "select rendezvous_port as port from claims where rendezvous_port is not null order by 1")
    return [row["port"] for row in found]


async def two_hosts(db: Database, addresses: tuple[str, str] = ("10.0.0.1", "10.0.0.2"), *, gpus: int = 6) -> None:
    for name, address in zip(("w1", "w2"), addresses, strict=True):
        host = await add_host(db, name, gpus=gpus)
        async with db.transaction() as c:
            await c.execute("update workers set proxy_address = $1 where id = $2", f"{address}:7000", host.id)


async def test_gangs_of_one_host_meet_at_different_ports(
    db: Database, leader_term: LeaderTerm, few_ports: range
) -> None:
    await two_hosts(db)
    for n in range(6):
        await add_deployment(db, f"g{n}", **GANG, engine="vllm", model="path:/m")
    async with db.transaction() as c:
        await c.execute("update revisions set need = $1", need_to_json(Need(memory_mib=1024, heads=8)))
    await leader_term.settle()
    assert await ports(db) == list(few_ports)
    orders = await rows(db, "select instance_id, payload from commands order by id")
    told: dict[str, set[str]] = {}
    for order in orders:
        argv = order["payload"]["argv"]
        told.setdefault(order["instance_id"], set()).add(argv[argv.index("--master-port") + 1])
    assert sorted(int(port) for (port,) in told.values()) == list(few_ports), "all ranks of a gang have its port"


async def test_another_leader_knows_of_them(db: Database, few_ports: range) -> None:
    await two_hosts(db)
    for n in range(6):
        await add_deployment(db, f"g{n}", **GANG)
        term = await LeaderTerm.begin(db)
        await term.settle()
        await term.aclose()
    assert await ports(db) == list(few_ports)


async def test_agents_at_one_address_share_its_ports(db: Database, leader_term: LeaderTerm, few_ports: range) -> None:
    """Two agents of one host: the leaders of their gangs would listen at the same address."""
    await two_hosts(db, ("10.0.0.1", "10.0.0.1"))
    for n in range(6):
        await add_deployment(db, f"g{n}", **GANG)
    await leader_term.settle()
    assert await ports(db) == list(few_ports)


async def test_a_port_is_free_again_with_the_claims(db: Database, leader_term: LeaderTerm) -> None:
    await two_hosts(db)
    await add_deployment(db, "g", **GANG)
    await leader_term.settle()
    assert len(await ports(db)) == 1
    async with db.transaction() as c:
        await c.execute("delete from claims")
    assert await ports(db) == []


def test_the_search_goes_on_from_where_it_begins() -> None:
    first = rendezvous_port("i/1")
    second = rendezvous_port("i/1", {first})
    assert first != second
    assert {first, second} <= set(RENDEZVOUS_PORTS)
    assert rendezvous_port("i/1", set(RENDEZVOUS_PORTS)) == first, "none is free: as before"
