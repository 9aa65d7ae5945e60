"""Cases with hosts that are not ready, or with running instances."""

import pytest

from support.processes.cluster import Json
from support.processes.placement_site import Site, gpus_of
from support.processes.placement_tables import args_of

pytestmark = [pytest.mark.cases, pytest.mark.asyncio(loop_scope="session")]
A80 = ("a80-1", "a80-2", "a80-3")


def manifest(name: str, model: str, **fields: object) -> Json:
    return {"name": name, "args": args_of(model), **fields}


async def rejected(site: Site, wanted: Json) -> Json:
    """The reasons, equal in a plan and after the apply."""
    (item,) = await site.plan(wanted)
    assert not item["fits"]
    applied = await site.applied(wanted)
    assert applied["status"]["explain"]["rejected"] == item["explain"]["rejected"]
    return dict(item["explain"]["rejected"])


async def goes_to(site: Site, wanted: Json) -> str:
    """Its GPU, equal in a plan and after the apply."""
    (item,) = await site.plan(wanted)
    (gpu,) = (await site.applied(wanted))["status"]["gpus"]
    assert item["gpus"] == [gpu]
    return str(gpu)


async def runs_on(site: Site, name: str, model: str, gpu: str, *, replicas: int = 1) -> None:
    """Has something run there."""
    wanted = manifest(name, model, placement={"gpus": [gpu]}, replicas=replicas)
    await site.cluster.apply(**wanted)
    await site.cluster.running(name)


async def test_c29_a_label_that_no_host_has(site: Site) -> None:
    await site.hosts("w24a", "w16x2")
    wanted = manifest("case", "q06b", placement={"labels": {"os": "Windows"}})
    assert await rejected(site, wanted) == {"label_mismatch": 2}


async def test_c29_a_cordoned_host_gets_nothing(site: Site) -> None:
    await site.hosts("w24a", "w16x2")
    await site.cluster.post("/workers/w24a/cordon")
    wanted = manifest("case", "q06b")
    assert await goes_to(site, wanted) in gpus_of({"w16x2": [0, 1]})
    by_hand = manifest("by-hand", "q06b", placement={"workers": ["w24a"]})
    assert await rejected(site, by_hand) == {"cordoned": 1, "not_selected": 1}


async def test_a_cordoned_gpu_gets_nothing_and_keeps_what_it_has(site: Site) -> None:
    await site.hosts("w16x2")
    await runs_on(site, "stays", "q06b", "w16x2:0")
    (first,) = gpus_of({"w16x2": [0]})
    await site.cluster.post(f"/gpus/{first}/cordon")
    assert await goes_to(site, manifest("case", "q06b")) in gpus_of({"w16x2": [1]})
    by_hand = manifest("by-hand", "q06b", placement={"gpus": ["w16x2:0"]})
    assert await rejected(site, by_hand) == {"gpu_cordoned": 1}
    await site.cluster.running("stays")
    await site.cluster.post(f"/gpus/{first}/uncordon")
    await site.cluster.running("by-hand")


async def test_c29_a_host_that_is_not_ready_gets_nothing(site: Site) -> None:
    await site.hosts(*A80)
    await site.silence("a80-1")
    first = await goes_to(site, manifest("case", "s14g"))
    assert first in gpus_of({"a80-2": [0, 1], "a80-3": [0, 1]})
    await site.cluster.delete("case")
    await site.cluster.gone("case")
    assert await goes_to(site, manifest("case", "s14g")) == first, "ties are broken the same way each time"


async def test_c32_memory_that_others_hold_is_not_free(site: Site) -> None:
    await site.host("w16x2", foreign_memory="16048MiB")  # 98 %

    async def believed() -> bool:  # one reading proves little; the second comes with a heartbeat
        events = (await site.cluster.get("/events?limit=50"))["items"]
        return sum(event["reason"] == "gpu_memory_unclaimed" for event in events) == 2

    await site.cluster.until(believed, "the memory that no claim explains is noticed")
    assert await rejected(site, manifest("case", "s1g")) == {"gpu_in_use": 1}
    by_hand = manifest("by-hand", "s1g", placement={"gpus": ["w16x2:1"]})
    assert await rejected(site, by_hand) == {"gpu_in_use": 1}


async def test_c36_pack_and_spread_choose_different_gpus(site: Site) -> None:
    await site.hosts("w16x4")
    await runs_on(site, "a", "q06b", "w16x4:0")
    await runs_on(site, "b", "q06b", "w16x4:2")
    shared, free = gpus_of({"w16x4": [0, 2]}), gpus_of({"w16x4": [1, 3]})
    (packed,) = await site.plan(manifest("case", "q06b"))
    (spread,) = await site.plan(manifest("case", "q06b", placement={"strategy": "spread"}))
    assert packed["gpus"][0] in shared
    assert spread["gpus"][0] in free
    assert await goes_to(site, manifest("packed", "q06b")) == packed["gpus"][0]


async def test_c40_spread_looks_at_the_deployment_then_at_the_load(site: Site) -> None:
    await site.hosts("w24a", "w16x2")
    wanted = manifest("case", "q06b", placement={"strategy": "spread"})
    await site.cluster.post("/workers/w24a/cordon")
    first = await goes_to(site, wanted)
    assert first in gpus_of({"w16x2": [0, 1]})
    (other,) = (n for n in (0, 1) if first not in gpus_of({"w16x2": [n]}))  # an empty GPU would come before a sibling's
    await site.cluster.post("/workers/w24a/uncordon")
    assert await next_one(site, wanted, 2) == "w24a", "it has none of the deployment"
    await runs_on(site, "others", "q06b", f"w16x2:{other}", replicas=2)
    assert await next_one(site, wanted, 3) == "w24a", "both have one of the deployment, the other has more of others"


async def next_one(site: Site, wanted: Json, replicas: int) -> str:
    """The worker of one more replica, by a plan and after the scaling alike."""
    (item,) = await site.plan({**wanted, "replicas": replicas})
    before = {one["name"] for one in await site.cluster.instances(wanted["name"])}
    await site.cluster.post(f"/deployments/{wanted['name']}/scale", {"replicas": replicas})
    fresh: list[str] = []

    async def placed() -> bool:
        found = [i for i in await site.cluster.instances(wanted["name"]) if i["name"] not in before]
        fresh[:] = [one["status"]["worker"] for one in found if one["status"]["worker"]]
        return bool(fresh)

    await site.cluster.until(placed, "one more has a place")
    assert item["worker"] == fresh[0]
    return fresh[0]


async def test_c40_spread_looks_at_the_gpus_of_a_host(site: Site) -> None:
    await site.hosts("w16x2")
    await runs_on(site, "others", "q06b", "w16x2:0", replicas=2)
    wanted = manifest("case", "q06b", placement={"strategy": "spread"})
    assert [await goes_to(site, wanted)] == gpus_of({"w16x2": [1]})
