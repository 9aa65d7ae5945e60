"""The catalog: well-known models, what they need, and where the scheduler would place each now."""

import asyncio
import time
from typing import Any

import pytest

from controller.api.dry_run import catalog as catalog_route
from controller.api.dry_run.catalog import KEPT_S
from controller.store.core.database import Database
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim
from support.leading.served_api import ServedApi

CATALOG = "/api/v1/catalog"
SMALL = "hf:Qwen/Qwen3-0.6B"
LARGE = "hf:deepseek-ai/DeepSeek-V3"
SOME = "hf:Qwen/Qwen3-30B-A3B"  # more than half of a GPU of 80 GiB


async def catalog(api: ServedApi) -> dict[str, Any]:
    """By model."""
    return {one["model"]: one for one in (await api.get(CATALOG, role="viewer"))["items"]}


async def test_without_a_worker_needs_are_known_and_nothing_fits(api: ServedApi) -> None:
    found = await catalog(api)
    assert {SMALL, SOME, LARGE} <= set(found)
    sizes = [one["weight_bytes"] for one in found.values()]
    assert sizes == sorted(sizes)
    for one in found.values():
        assert one["fits"] is None
        assert one["message"]
        counts = [layout["gpus"] for layout in one["layouts"]]
        assert counts == sorted(set(counts))
        assert counts
        by_all = [layout["gpus"] * layout["memory_mib_per_gpu"] * 2**20 for layout in one["layouts"]]
        assert min(by_all) > one["weight_bytes"] * 0.9, "the weights at least"


async def test_what_fits_is_what_is_free_now(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=2, gib=80)
    found = await catalog(api)
    small, large = found[SMALL], found[LARGE]
    assert small["fits"]["workers"] == ["w"]
    assert len(small["fits"]["gpus"]) == small["fits"]["layout"]["gpus"] == 1
    need = {"gpus": 1, "memory_mib_per_gpu": small["fits"]["memory_mib_per_gpu"]}
    assert need in small["layouts"]
    assert small["fits"]["engine"] in small["engines"]
    assert small["message"] == ""
    assert large["fits"] is None
    assert found[SOME]["fits"] is not None, "each is judged as if it were alone"


async def test_held_gpus_are_seen_after_a_moment(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1, gib=80)
    assert (await catalog(api))[SOME]["fits"] is not None
    uid = await add_deployment(db, "other")
    await add_instance(db, uid, "i", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "i", 40 * GIB)
    await asyncio.sleep(KEPT_S)  # as long as an answer is kept, and no longer
    found = await catalog(api)
    assert found[SOME]["fits"] is None
    assert found[SOME]["message"]
    assert found[SMALL]["fits"] is not None
    rows = await db_claims(db)
    assert rows == 1, "nothing is claimed by looking"


async def db_claims(db: Database) -> int:
    async with db.snapshot() as c:
        (row,) = await c.fetch("select count(*) as n from claims")
    return int(row["n"])


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
async def test_all_that_ask_at_once_share_one_look(api: ServedApi, role: str) -> None:
    answers = await asyncio.gather(*(api.get(CATALOG, role=role) for _ in range(20)))
    assert len({answer["at"] for answer in answers}) <= 2


async def test_it_takes_no_parameters_and_no_key_for_inference(api: ServedApi) -> None:
    assert (await api.call("GET", CATALOG + "?model=x"))[0] == 400
    assert (await api.call("GET", CATALOG, role="inference"))[0] == 403


async def test_the_limit_does_not_leave_a_thread_behind(api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = catalog_route.catalog_view

    def slow(inventory: Any, at: Any) -> Any:
        time.sleep(2.0)
        return judged(inventory, at)

    monkeypatch.setattr(catalog_route, "READ_LIMIT_S", 1.5)
    monkeypatch.setattr(catalog_route, "catalog_view", slow)
    assert await catalog(api)


async def test_an_answer_ages_from_when_its_look_began() -> None:
    now, looks = 100.0, 0

    async def look() -> bytes:
        nonlocal now, looks
        now, looks = now + KEPT_S / 2, looks + 1
        return str(looks).encode()

    kept = catalog_route.Catalog(look, clock=lambda: now)
    assert [await kept.get(), await kept.get()] == [b"1", b"1"]
    now += KEPT_S / 2
    assert await kept.get() == b"2", "what it saw is as old as an answer may be"
    await kept.close()
