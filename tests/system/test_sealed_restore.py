"""A restore without the key of secrets, as on a new host: engines are reached again, and none is stopped for it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from support.processes.cluster import Prepared
from support.processes.gateways import CHAT, asked, embedded_dsn
from support.processes.operated import OperatedCluster

pytestmark = [pytest.mark.cases, pytest.mark.timeout(240)]
HOST = "gpu-1"
GPU = {"args": {"memory": "4GiB"}, "resources": {"gpus": 1}}
STRAYS_STOP_WITHIN_S = 15.0


@pytest.fixture
async def cluster(data_dir: Path, prepared: Prepared) -> AsyncIterator[OperatedCluster]:
    made = OperatedCluster(data_dir, prepared)
    yield made
    await made.aclose()


async def serves(cluster: OperatedCluster) -> bool:
    async with cluster.session.post(CHAT, json=asked("tokens=2")) as answer:
        return answer.status == 200


async def test_what_a_receipt_names_runs_on_until_the_key_is_back(cluster: OperatedCluster, tmp_path: Path) -> None:
    await cluster.start_controller()
    await cluster.start_agent(HOST, gpus=2)
    await cluster.apply("m", **GPU)
    await cluster.running("m")
    database = await asyncpg.connect(embedded_dsn(cluster))

    async def is_sealed() -> bool:
        plain = "select exists (select from lease where receipt_key is not null)"
        workers = "select exists (select from workers where proxy_secret is not null)"
        return not (await database.fetchval(plain) or await database.fetchval(workers))

    try:
        await cluster.until(is_sealed, "both are sealed", 60)
    finally:
        await database.close()
    await cluster.done("backup", str(tmp_path / "backup.zip"))
    await cluster.apply("later", **GPU)
    await cluster.running("later")
    engines = {name: engine.pid for name, engine in cluster.engines().items()}
    assert len(engines) == 2
    await cluster.stop_controller()
    key_file = cluster.data_dir / "secrets.key"
    kept = key_file.rename(cluster.folder / "kept.key")
    said = await cluster.done("restore", str(tmp_path / "backup.zip"), "--replace", "--yes")
    assert "the key of receipts" in said

    await cluster.start_controller()
    await cluster.until(lambda: cluster.worker_is(HOST, "ready"), "the worker is ready", 60)
    await cluster.running("m")
    await cluster.until(lambda: serves(cluster), "the agent's proxy has a secret that the gateway knows", 40)
    await asyncio.sleep(STRAYS_STOP_WITHIN_S)
    assert {name: engine.pid for name, engine in cluster.engines().items()} == engines, "none is stopped for it"
    codes = {one["code"] for one in (await cluster.get("/attention"))["items"]}
    assert "receipts_unreadable" in codes

    await cluster.stop_controller()
    key_file.write_text(key_file.read_text() + kept.read_text())
    await cluster.start_controller()
    await cluster.until(lambda: len(cluster.engines()) == 1, "the one that the backup does not want is gone", 60)
    (kept_one,) = await cluster.instances("m")
    assert {kept_one["name"]} == set(cluster.engines())
    assert await serves(cluster)
    reasons = {event["reason"] for event in (await cluster.get("/events?limit=1000"))["items"]}
    assert "not_adopted" in reasons
