"""All that the API tells a role: every route that is read, plans, watches and live topics."""

import orjson

from controller.api.app import all_routes
from controller.api.route import Access, Route
from support.leading.live_tab import Tab, tab
from support.leading.served_api import ServedApi

READS = [
    route
    for route in all_routes("x")
    if route.method == "GET"
    and route.access in (Access.READ, Access.OPERATE, Access.ADMINISTER)
    and route.media == "application/json"
]
MANIFEST = {"kind": "Deployment", "name": "d", "engine": "simulated", "replicas": 2}


async def told(api: ServedApi, role: str) -> dict[str, str]:
    """All that the API tells this role, by path.

    The database has a deployment `d` with instances `a` and `b`, and a worker `w` with a GPU.
    """
    found = {}
    for route in READS:
        path = path_of(route)
        if role not in route.access.value or path.endswith(("/cache", "/live")):
            continue
        status, body = await api.call("GET", path, role=role)
        assert status == 200, (path, body)
        found[path] = orjson.dumps(body).decode()
    status, body = await api.call("POST", "/api/v1/plan", role=role, json={"manifests": [MANIFEST], "candidates": True})
    assert status == 200, body
    found["plan"] = orjson.dumps(body).decode()
    async with api.session.get(f"{api.url}/api/v1/watch", headers=api.header(role)) as stream:
        await stream.content.readline()
        found["watch"] = (await stream.content.readline()).decode()
    async with tab(api, role) as one:
        events = len(orjson.loads(found["/api/v1/events"])["items"])
        for number, (topic, kind, count) in enumerate(
            (("objects", "snapshot", 1), ("gpus", "gpus", 1), ("events", "event", events))
        ):
            found[topic] = await _messages(one, number, topic, kind, count)
    return found


async def _messages(one: Tab, number: int, topic: str, kind: str, count: int) -> str:
    await one.open(number, topic, **({"since": 0} if topic == "events" else {}))
    return "".join([orjson.dumps(await one.of(number, kind)).decode() for _ in range(count)])


def path_of(route: Route) -> str:
    """The path of something that the database has."""
    path = route.path.replace("{id}", "b" if "explain" in route.path else "a").replace("{uuid}", "GPU-w-0")
    path = path.replace("{name}", "w" if "/workers/" in path else "d").replace("policies/d", "policies")
    return path + {"utilization": "?worker=w", "diff": "?from=1&to=1"}.get(path.rpartition("/")[2], "")
