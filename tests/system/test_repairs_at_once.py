"""Two administrators repair the ledger at once while instances change: each fault is mended once, and none ends."""

import asyncio
import itertools

import asyncpg
import pytest

from support.processes.cluster import Cluster, Json
from support.processes.gateways import embedded_dsn
from support.processes.hostile import meanwhile

pytestmark = [pytest.mark.cases, pytest.mark.timeout(180)]
ROUNDS = 6
# One MiB more than is claimed, on a GPU of what is kept running; and a notice that has not ended.
_COUNTER = """
    update devices set claimed_mib = claimed_mib + 1
     where uuid in (select c.device from claims c join instances i on i.id = c.instance_id
                      join deployments d on d.uid = i.deployment_uid where d.name = 'kept' limit 1)"""
_ACTION = """
    insert into policy_actions (at, policy, policy_generation, action, dry_run, deployment_uid, deployment, instances,
                                gpus, evidence)
    values (now(), 'p', 1, 'notify', false, gen_random_uuid(), 'old', '{}', 1, '{}')"""


async def test_each_fault_is_mended_once_and_nothing_wanted_ends(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("gpu-1", gpus=4)
    await cluster.apply("kept", replicas=2, args={"memory": "4GiB"}, resources={"gpus": 1})
    await cluster.running("kept")
    kept = {i["name"]: cluster.engines()[i["name"]].pid for i in await cluster.instances("kept")}
    second = (await cluster.post("/keys", {"role": "admin", "name": "second"}))["key"]
    database = await asyncpg.connect(embedded_dsn(cluster))

    async def change() -> int:
        """Instances come and go all the time."""
        for n in itertools.count():
            await cluster.apply(f"brief-{n % 3}", args={"memory": "1GiB"}, resources={"gpus": 1, "gpu_memory": "2GiB"})
            if n >= 2:
                await cluster.delete(f"brief-{(n - 2) % 3}")
            await asyncio.sleep(0.1)
        raise AssertionError

    async def repair(headers: dict[str, str]) -> Json:
        async with cluster.session.post("/api/v1/audit/repair", headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return dict(await answer.json())

    try:
        async with meanwhile(asyncio.create_task(change())):
            for _ in range(ROUNDS):
                async with database.transaction():
                    await database.execute(_COUNTER)
                    await database.execute(_ACTION)
                both = await asyncio.gather(repair({}), repair({"Authorization": f"Bearer {second}"}))
                mended = sorted(one["invariant"] for view in both for one in view["mended"])
                assert mended == ["counters_match_claims", "only_limits_stay_open"], mended
                assert all(view["ok"] for view in both), both
    finally:
        await database.close()
    await cluster.audit()
    told = [
        event for event in (await cluster.get("/events?limit=1000"))["items"] if event["reason"] == "ledger_repaired"
    ]
    assert sum(event["evidence"]["changes"] for event in told) == 2 * ROUNDS
    assert {event["actor"] for event in told} <= {"key:first", "key:second"}
    engines = cluster.engines()
    assert {name: engines[name].pid for name in kept} == kept
    assert {i["name"]: i["status"]["restarts"] for i in await cluster.instances("kept")} == dict.fromkeys(kept, 0)
