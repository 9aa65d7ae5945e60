"""Gateways as operators see them, and their word that one is gone."""

import uuid
from urllib.parse import quote

from controller.domain.scaling import GatewayLoad
from controller.store.core.database import Database
from controller.store.scaling.gateways import report_demand
from support.database.ledger import add_deployment, rows
from support.leading.served_api import ServedApi

PATH = "/api/v1/gateways"
LIVES, DEAD, ALSO_DEAD = "host-a:8420/1", "host-a:8420/2", "host-b:8420"


async def with_gateways(db: Database, uid: str) -> None:
    load = {uuid.UUID(uid): GatewayLoad(3.0, 2, 1, 3)}
    for name in (LIVES, DEAD, ALSO_DEAD):
        async with db.connection() as connection:
            await report_demand(connection, uuid.uuid4(), name, 1, load)
    async with db.transaction() as connection:
        await connection.execute(
            "update gateways set seen_at = now() - interval '90 s' where name = any($1)", [DEAD, ALSO_DEAD]
        )


async def test_a_silent_gateway_is_forgotten_at_an_operators_word(api: ServedApi, db: Database) -> None:
    await with_gateways(db, await add_deployment(db, "m"))
    status, listed = await api.call("GET", PATH, role="viewer")
    assert status == 200
    states = {
        one["name"]: (one["state"], one["in_flight"], one["waiting"])
        for one in listed["items"]
        if "host-" in one["name"]
    }
    assert states == {LIVES: ("reporting", 2, 1), DEAD: ("silent", 2, 1), ALSO_DEAD: ("silent", 2, 1)}

    assert (await api.call("DELETE", f"{PATH}/{ALSO_DEAD}", role="viewer"))[0] == 403
    assert (await api.call("DELETE", f"{PATH}/{ALSO_DEAD}", role="operator"))[0] == 204
    status, answer = await api.call("DELETE", f"{PATH}/{ALSO_DEAD}", role="operator")
    assert (status, answer["error"]["code"]) == (404, "not_found")
    status, answer = await api.call("DELETE", f"{PATH}/{quote(LIVES, safe='')}", role="operator")
    assert (status, answer["error"]["code"]) == (409, "in_use"), "one that reports would be back in a second"
    assert (await api.call("DELETE", f"{PATH}/host-a:8420", role="operator"))[0] == 204, "its silent processes"

    assert [row["name"] for row in await rows(db, "select name from gateways where name like 'host-%'")] == [LIVES]
    assert len(await rows(db, "select 1 from gateway_demand")) == 1
    events = await rows(db, "select actor, evidence from events where reason = 'gateway_forgotten' order by id")
    assert [(e["actor"], e["evidence"]["gateway"]) for e in events] == [
        ("key:operator", ALSO_DEAD),
        ("key:operator", DEAD),
    ]
    assert events[0]["evidence"]["silent_s"] >= 90


async def test_a_deployments_load_is_what_reporting_gateways_have_of_it(api: ServedApi, db: Database) -> None:
    await with_gateways(db, await add_deployment(db, "m"))
    await add_deployment(db, "other")
    status, load = await api.call("GET", "/api/v1/deployments/m/load", role="viewer")
    assert status == 200
    assert (load["in_flight"], load["waiting"], load["silent"]) == (2, 1, [DEAD, ALSO_DEAD])
    _, other = await api.call("GET", "/api/v1/deployments/other/load", role="viewer")
    assert (other["in_flight"], other["waiting"]) == (0, 0)
    status, answer = await api.call("GET", "/api/v1/deployments/none/load", role="viewer")
    assert (status, answer["error"]["code"]) == (404, "not_found")
