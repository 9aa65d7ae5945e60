"""Idle report and utilization: their figures, and their refusals."""

from typing import Any

import pytest

from controller.domain.telemetry.gpu_prices import GpuPrices, prices_of
from controller.store.core.database import Database
from support.database.history import at, minutes, partitions, rolled_up, span
from support.database.ledger import add_deployment, add_host, add_instance, claim
from support.leading.served_api import ServedApi, served

A = "GPU-w-0"
D = "/api/v1/deployments"


@pytest.fixture
async def spent(db: Database) -> str:
    """An hour of a whole GPU, half of it busy; rolled up to now."""
    await partitions(db)
    await add_host(db, "w", gpus=1)
    policy = {"min_gpu_utilization": 30, "time_window": "10m"}
    uid = await add_deployment(db, "d", utilization_policy=policy)
    await span(db, A, "i", uid, 0, 3600)
    await minutes(db, A, [(60.0 * n, 90.0 if n < 30 else 20.0) for n in range(60)])
    await rolled_up(db)
    return uid


async def test_the_idle_report_adds_up(api: ServedApi, spent: str) -> None:
    query = "since=1d&min_gpu_utilization=25&time_window=5m"
    report: dict[str, Any] = await api.get(f"/api/v1/reports/idle?{query}", role="viewer")
    (item,) = report["items"]
    assert (item["uid"], item["policy"], item["min_gpu_utilization"]) == (spent, "inline", 30)
    expected = {"claimed": 1.0, "used": 0.55, "wasted": 0.5, "unknown": 0.0, "freed": 0.0, "would_free": 25 / 60}
    assert item["gpu_hours"] == pytest.approx(expected, abs=1e-6)
    assert report["total"] == item["gpu_hours"]
    assert report["replayed"] == {"min_gpu_utilization": 25, "time_window": 300}
    plain = await api.get("/api/v1/reports/idle?since=60s", role="viewer")
    assert (plain["items"], plain["replayed"], plain["total"]["would_free"]) == ([], None, None)


async def test_the_idle_stretches_add_up_to_the_report(api: ServedApi, db: Database, spent: str) -> None:
    """Two GPUs, one of them shared, idle at times that overlap; one minute between two stretches is busy."""
    await add_host(db, "x", gpus=2)
    b, c = "GPU-x-0", "GPU-x-1"
    await span(db, b, "j", spent, 0, 5400)
    await minutes(db, b, [(60.0 * n, 0.0 if n >= 20 and n != 75 else 90.0) for n in range(90)])
    await span(db, c, "k", spent, 90, 1000, share=0.25)
    await minutes(db, c, [(60.0 * n, 5.0) for n in range(17)], instance="k")
    await rolled_up(db)
    (item,) = (await api.get("/api/v1/reports/idle?since=1d"))["items"]
    found: dict[str, Any] = await api.get(f"{D}/d/idle?since=1d", role="viewer")
    assert found["gpu_hours"] == pytest.approx(item["gpu_hours"]["wasted"], abs=1e-9)
    assert found["gpu_hours"] == pytest.approx(sum(one["gpu_hours"] for one in found["items"]))
    assert (found["uid"], found["policy"], found["min_gpu_utilization"]) == (spent, "inline", 30)

    def moment(seconds: float) -> str:
        return at(seconds).isoformat().replace("+00:00", "Z")

    stretches = [(one["since"], one["until"], one["seconds"], one["gpus"]) for one in found["items"]]
    assert stretches == [
        (moment(60), moment(1020), 960.0, 1),
        (moment(1200), moment(4500), 3300.0, 2),
        (moment(4560), moment(5400), 840.0, 1),
    ]
    assert found["items"][2]["gpu_hours"] == pytest.approx(840 / 3600)
    assert (await api.get(f"{D}/d/idle?since=1d&uid={spent}"))["items"] == found["items"]
    status, answer = await api.call("GET", f"{D}/other/idle?since=1d&uid={spent}")
    assert (status, answer["error"]["message"].partition(":")[0]) == (404, "uid"), "it is not of that name"
    async with db.transaction() as c:
        await c.execute("update deployments set name = 'renamed' where uid = $1", spent)  # as good as gone
    assert (await api.get(f"{D}/d/idle?since=1d&uid={spent}"))["items"] == found["items"], "its claims tell its name"
    async with db.transaction() as c:
        await c.execute("update deployments set name = 'd' where uid = $1", spent)
    assert (await api.get(f"{D}/d/idle?since=60s"))["items"] == []


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [("uid=x", 400, "uid"), ("since=1s", 400, "since"), ("window=5m", 400, "window"), ("", 404, None)],
)
async def test_refused_idle_stretches(api: ServedApi, query: str, status: int, field: str | None) -> None:
    found, answer = await api.call("GET", f"{D}/unknown/idle?{query}", role="viewer")
    assert found == status
    problems = answer["error"]["details"].get("problems", [])
    assert [one["path"] for one in problems] == ([field] if field else [])


async def test_utilization_of_an_instance_names_its_effective_policy(api: ServedApi, db: Database, spent: str) -> None:
    await add_instance(db, spent, "i", phase="running", epoch=1)
    await claim(db, A, "i", 40 * 1024, exclusive=True)
    for query in ("instance=i", "deployment=d"):
        view = await api.get(f"/api/v1/utilization?{query}", role="viewer")
        assert view["policy"] == {"name": "", "min_gpu_utilization": 30, "time_window": 600}
        assert (view["window_s"], [s["gpu"] for s in view["series"]]) == (600, [A])
    long = await api.get(f"/api/v1/utilization?gpus={A}&window=12h", role="viewer")
    assert long["policy"] is None
    assert 90.0 in long["series"][0]["values"]
    assert (await api.get("/api/v1/utilization?worker=w", role="viewer"))["window_s"] == 600
    assert at(0).isoformat() < long["until"]


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("utilization", 400, "gpus"),
        ("utilization?gpus=a&instance=b", 400, "gpus"),
        ("utilization?gpus=a&window=5s", 400, "window"),
        ("utilization?gpus=a&window=soon", 400, "window"),
        ("utilization?gpus=" + "a,b," * 257, 400, "gpus"),
        ("utilization?instance=unknown", 404, "unknown"),
        ("reports/idle?since=1s", 400, "since"),
        ("reports/idle?min_gpu_utilization=10", 400, "time_window"),
        ("reports/idle?time_window=5m", 400, "min_gpu_utilization"),
        ("reports/idle?min_gpu_utilization=0&time_window=5m", 400, "min_gpu_utilization"),
        ("reports/idle?min_gpu_utilization=10&time_window=10s", 400, "time_window"),
        ("reports/idle?sinc=7d", 400, "sinc"),
    ],
)
async def test_an_invalid_parameter_is_refused_by_its_name(api: ServedApi, path: str, status: int, field: str) -> None:
    found, body = await api.call("GET", f"/api/v1/{path}", role="viewer")
    assert found == status
    assert field in body["error"]["message"]


async def test_the_idle_report_in_money(db: Database) -> None:
    """One deployment on two models, one on a model without a price."""
    await partitions(db)
    await add_host(db, "h", gpus=1)
    await add_host(db, "a", gpus=1)
    await add_host(db, "t", gpus=1)
    async with db.transaction() as c:
        for name, model in (("h", "NVIDIA H100 NVL"), ("a", "NVIDIA A100-SXM4-80GB"), ("t", "Tesla T4")):
            await c.execute("update devices set model = $2 where uuid = $1", f"GPU-{name}-0", model)
    mixed, cheap = await add_deployment(db, "mixed"), await add_deployment(db, "cheap")
    await span(db, "GPU-h-0", "i", mixed, 0, 3600, name="mixed")
    await span(db, "GPU-a-0", "j", mixed, 0, 3600, name="mixed", share=0.5)
    await span(db, "GPU-t-0", "k", cheap, 0, 1800, name="cheap")
    await minutes(db, "GPU-h-0", [(60.0 * n, 50.0 if n < 30 else 0.0) for n in range(60)])
    await minutes(db, "GPU-a-0", [(60.0 * n, 5.0) for n in range(30)], instance="j")
    await rolled_up(db)
    query = "/api/v1/reports/idle?since=1d&min_gpu_utilization=10&time_window=10m"
    async with served(db, prices=GpuPrices(prices_of("H100=2.50, A100=1.00"), "EUR")) as priced:
        report: dict[str, Any] = await priced.get(query, role="viewer")
    costs = {item["deployment"]: item["cost"] for item in report["items"]}
    expected = {"claimed": "3.00", "used": "0.64", "wasted": "1.50", "unknown": "0.25"}
    would = costs["mixed"].pop("would_free")
    assert costs["mixed"] == expected
    assert 0 < float(would) < 3
    assert set(costs["cheap"].values()) == {None, "0.00"}, "nothing of it was used or would be freed"
    assert costs["cheap"]["claimed"] is None
    assert (report["currency"], report["unpriced"]) == ("EUR", [{"model": "Tesla T4", "gpu_hours": 0.5}])
    assert report["total_cost"] == {**expected, "would_free": would}
    async with served(db) as plain:
        report = await plain.get(query)
    assert (report["currency"], report["total_cost"], report["unpriced"]) == (None, None, [])
    assert [item["cost"] for item in report["items"]] == [None, None]
