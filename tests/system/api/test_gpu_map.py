"""`GET /map` over HTTP: which roles may read it, and its figures beside those of `GET /gpus`."""

from controller.store.core.database import Database
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim
from support.leading.served_api import ServedApi

PATH = "/api/v1/map"


async def test_the_map_has_the_figures_of_the_list(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=2, gib=40)
    await add_instance(db, await add_deployment(db, "d"), "d-0", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "d-0", 8 * GIB)
    status, found = await api.call("GET", PATH, role="viewer")
    assert status == 200
    listed = (await api.get("/api/v1/gpus"))["items"]
    gpus = found["gpus"]
    assert gpus["uuid"] == [one["uid"] for one in listed]
    assert gpus["memory_claimed_bytes"] == [one["status"]["claimed_mib"] * 2**20 for one in listed] == [8 * 2**30, 0]
    assert (gpus["holder"], gpus["holders"], gpus["utilization"]) == (["d", None], [1, 0], [None, None])
    assert (found["workers"]["name"], found["workers"]["state"], found["models"]) == (["w"], ["ready"], ["H100"])


async def test_an_inference_key_may_not_read_the_map(api: ServedApi) -> None:
    assert (await api.call("GET", PATH, role="operator"))[0] == 200
    assert (await api.call("GET", PATH, role="inference"))[0] == 403
    status, answer = await api.call("GET", f"{PATH}?worker=w", role="viewer")
    assert (status, answer["error"]["code"]) == (400, "invalid")
