"""Health, readiness, metrics and the OpenAPI document."""

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from controller.api.app import all_routes
from controller.api.context import Check
from controller.api.resources import health
from controller.store.core.database import Database
from schemas.api.models import FORM_PATHS, MODEL_PATH, MODEL_PATHS, MODELS_PATH
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim
from support.leading.served_api import ServedApi


async def test_a_lagging_loop_is_unhealthy(api: ServedApi) -> None:
    assert (await api.get("/healthz"))["status"] == "ok"
    api.surroundings.lag_s = 5.5
    status, body = await api.call("GET", "/healthz")
    assert (status, body) == (503, {"status": "lagging", "loop_lag_s": 5.5})


async def test_readiness_requires_every_check(api: ServedApi, monkeypatch: Any) -> None:
    assert (await api.get("/readyz"))["ready"] is True
    api.surroundings.checks["listener"] = Check(ok=False, message="last seen alive 12.0 s ago")
    status, body = await api.call("GET", "/readyz")
    assert status == 503
    assert body["checks"]["listener"] == {"ok": False, "message": "last seen alive 12.0 s ago"}
    excluding = await api.get("/readyz?exclude=ledger,listener")
    assert (excluding["ready"], excluding["checks"]["listener"]["ok"]) == (True, False)
    monkeypatch.setattr(health, "_CHECKS_LIMIT_S", 0.05)

    async def hang() -> Mapping[str, Check]:
        await asyncio.Event().wait()
        return {}

    context = api.app[health.CONTEXT]
    object.__setattr__(context, "readiness", hang)
    status, body = await api.call("GET", "/readyz")
    assert (status, body["ready"]) == (503, False)


async def test_what_checks_say_is_for_this_host_and_for_who_may_read(api: ServedApi) -> None:
    """At the gateway, and at the controller's own port; `/%72eadyz` goes through the gateway to the controller."""
    said, direct = "at 10.0.0.7: password authentication failed", controller_url(api)
    api.surroundings.checks["database"] = Check(ok=False, message=said)
    proxied = {"X-Forwarded-For": "192.0.2.7"}  # by a proxy of this host that is not a trusted one

    async def told(url: str, path: str = "/readyz", **headers: str) -> str:
        async with api.session.get(URL(url + path, encoded=True), headers=headers) as answer:
            body = await answer.json()
            assert (answer.status, body["ready"]) == (503, False)
            assert body["checks"]["database"]["ok"] is False
            return str(body["checks"]["database"]["message"])

    for url in (api.url, direct):
        assert await told(url) == said
        for names_a_client in (proxied, {"Forwarded": "for=192.0.2.7"}, {"X-Real-IP": "192.0.2.7"}):
            assert await told(url, **names_a_client) == ""
        assert await told(url, **proxied, Authorization="Bearer wrong") == ""
        assert await told(url, **proxied, **api.header("inference")) == ""
        for role in ("viewer", "operator", "admin"):
            assert await told(url, **proxied, **api.header(role)) == said
        assert await told(url, **proxied, **{"X-API-Key": api.keys["viewer"]}) == said
    for path in ("/%72eadyz", "/readyz?exclude=leader"):
        assert await told(api.url, path, **proxied) == ""
    assert await told(direct, **proxied, **{"X-Gpuward-Gateway": "guessed"}) == ""


def controller_url(api: ServedApi) -> str:
    host, port = api.gateway._controller.address[:2]
    return f"http://{host}:{port}"


async def scraped(api: ServedApi) -> Callable[..., float]:
    """What a scrape says, by name and labels."""
    async with api.session.get(api.url + "/metrics", headers=api.header("viewer")) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = await answer.text()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return lambda name, **labels: samples[name, tuple(sorted(labels.items()))]


async def test_metrics_have_the_names_of_the_contract(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1)
    await add_instance(db, await add_deployment(db, "d"), "d-1", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "d-1", GIB)
    async with db.transaction() as connection:
        await connection.execute("insert into device_readings values ('GPU-w-0', 1, 25, now())")
    api.metrics.observed("instances", "done", 0.01)
    api.metrics.depth("instances", 3)
    api.metrics.in_flight(2)
    api.metrics.count("analysis", "started")
    api.metrics.cancel_seconds(0.02)
    api.metrics.placed("placed", 4)
    api.metrics.placement_seconds(0.3)
    api.metrics.started({"starting": 2.0, "total": 3.0})
    api.metrics.restarted("d")
    api.metrics.finished("another")
    value = await scraped(api)
    assert value("gpuward_reconcile_seconds_count", kind="instances", outcome="done") == 1
    assert value("gpuward_queue_depth", kind="instances") == 3
    assert value("gpuward_computations_in_flight") == 2
    assert value("gpuward_computations_total", purpose="analysis", outcome="started") == 1
    assert value("gpuward_computation_cancel_seconds_count") == 1
    assert value("gpuward_placements_total", outcome="placed") == 4
    assert value("gpuward_placement_seconds_count") == 1
    assert value("gpuward_instances", phase="running") == 1
    assert value("gpuward_instances", phase="pending") == 0
    assert value("gpuward_workers", phase="ready") == 1
    assert value("gpuward_gpu_memory_claimed_bytes", worker="w", gpu_uuid="GPU-w-0", deployment="d") == 2**30
    assert value("gpuward_gpu_utilization_ratio", worker="w", gpu_uuid="GPU-w-0") == 0.25
    assert value("gpuward_start_seconds_count", phase="total") == 1
    assert value("gpuward_instance_restarts_total", deployment="d") == 1
    assert value("gpuward_leader") == 1
    assert value("gpuward_build_info", version="1.2.3") == 1


async def test_metrics_of_the_whole_fleet(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1)
    await add_instance(db, await add_deployment(db, "d"), "d-1", phase="running", epoch=1)
    await claim(db, "GPU-w-0", "d-1", GIB)
    async with db.transaction() as connection:
        await connection.execute("insert into audit_results values ('one_lease', 2, now())")
        await connection.execute(
            """insert into policy_verdicts (instance_id, epoch, deployment_uid, policy, policy_generation, action,
                                            dry_run, verdict)
               select id, epoch, deployment_uid, 'p', 1, 'notify', false, 'idle' from instances where id = 'd-1'"""
        )
        await connection.execute(
            """insert into webhook_deliveries (id, url, secret, payload, created_at)
               values (gen_random_uuid(), 'http://receiver', 's', '{}', now() - interval '1 hour')"""
        )
    await add_instance(db, await add_deployment(db, "waits"), "waits-1", phase="pending")
    value = await scraped(api)
    assert value("gpuward_gpus", model="H100", state="claimed") == 1
    assert value("gpuward_gpus", model="H100", state="free") == 0
    assert value("gpuward_gpus_memory_bytes", model="H100", state="claimed") == 2**30
    assert value("gpuward_gpus_memory_bytes", model="H100", state="free") == 39 * 2**30
    assert value("gpuward_instances_waiting", reason="pending") == 1
    assert value("gpuward_deployment_wanted_replicas", deployment="d") == 1
    assert value("gpuward_deployment_ready_replicas", deployment="d") == 0
    assert value("gpuward_idle_gpus", deployment="d") == 1 / 40
    assert value("gpuward_audit_violations", invariant="one_lease") == 2
    assert value("gpuward_audit_age_seconds") < 60
    assert value("gpuward_backlog", kind="webhooks") == 1
    assert value("gpuward_backlog_oldest_seconds", kind="webhooks") >= 3600
    assert value("gpuward_agents_connected") == 0


async def test_openapi_describes_every_route(api: ServedApi) -> None:
    document = await api.get("/openapi.json", role="viewer")
    assert document["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    models = {("GET", MODELS_PATH), ("GET", MODEL_PATH), *(("POST", path) for path in MODEL_PATHS | FORM_PATHS)}
    assert described == {(route.method, route.canonical) for route in all_routes("x")} | models
    identifiers = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(set(identifiers)) == len(identifiers)
    for path, item in document["paths"].items():
        for operation in item.values():
            declared = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path))
            assert all(one["required"] for one in operation["parameters"] if one["in"] == "path")
            assert operation["responses"]
            assert all(re.fullmatch(r"[1-5]\d\d|default", status) for status in operation["responses"])
            assert operation["summary"]
    for reference in references(document):
        assert resolve(document, reference) is not None, reference
    spec = document["components"]["schemas"]["DeploymentSpec"]
    assert spec["additionalProperties"] is False
    assert {"model", "engine", "replicas"} <= spec["properties"].keys()
    assert spec["properties"]["start_timeout"]["type"] == ["number", "string"]
    memory = document["components"]["schemas"]["Resources"]["properties"]["gpu_memory"]
    assert (memory["type"], memory["default"]) == ("string", "auto")


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in references(value)]
    return [found for value in node for found in references(value)] if isinstance(node, list) else []


def resolve(document: Any, reference: str) -> Any:
    node = document
    assert reference.startswith("#/")
    for step in reference.removeprefix("#/").split("/"):
        node = node.get(step, {})
    return node or None
