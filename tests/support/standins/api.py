"""A controller's HTTP API in memory, in its own thread: what client verbs may expect from the contract."""

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from support.builders.api_objects import Json, deployment, now_text, policy
from support.loopback import listening

KEY = "gpw_test"
Handler = Callable[[web.Request], Any]
_START_S = 10.0
_MOST_ITEMS = 1000  # of one page


def refusal(status: int, code: str, message: str, **details: Any) -> web.Response:
    body = {"error": {"code": code, "message": message, "details": details}}
    return web.json_response(body, status=status)


class ApiDouble:
    """Objects by kind and name. `asked` holds the requests; `script` runs before each read of an object."""

    def __init__(self) -> None:
        self.url = ""
        self.key = KEY
        self.objects: dict[str, dict[str, Json]] = {
            kind: {} for kind in ("deployments", "instances", "workers", "gpus", "policies", "events", "keys", "tokens")
        }
        self.secrets: dict[str, str] = {}
        self.caches: dict[str, list[Json]] = {}  # by worker; a worker without an entry does not answer
        self.logs: dict[str, bytes] = {}
        self.chats_cut = 0  # answers of which the client went away
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.script: Callable[[str, str], None] = lambda _kind, _name: None
        self.canned: dict[str, Json] = {"drain": {"items": []}, "policies": {}}
        self.series: dict[str, list[float | None]] = {}  # by GPU: the values of /utilization
        self.watch: Json | None = None  # the policy in its answer
        self.watches: list[asyncio.Queue[Json | None]] = []  # of open ones; None ends one
        self._cuttable: list[asyncio.WriteTransport] = []  # of watches
        self.watch_asked: list[dict[str, str]] = []
        self.before: Callable[[str, str], None] = lambda _method, _path: None  # runs before each request is answered
        self.refuse: Handler | None = None  # answers every request, where set
        self.refuse_map: Handler | None = None  # answers for the map

    def add(self, *things: Json) -> None:
        for thing in things:
            kind = "policies" if thing["kind"] == "UtilizationPolicy" else thing["kind"].lower() + "s"
            self.objects[kind][thing["name"]] = thing

    def bodies(self, method: str, path: str) -> list[Any]:
        return [body for m, p, _, body in self.asked if (m, p) == (method, path)]

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        api = "/api/v1"
        app.router.add_get(api + "/instances/{name}/logs", self._logs)
        app.router.add_get(api + "/deployments/{name}/logs", self._logs)
        app.router.add_get(api + "/deployments/{name}/models", self._models)
        app.router.add_put(api + "/deployments/{name}", self._put)
        app.router.add_put(api + "/policies/{name}", self._put_policy)
        app.router.add_post(api + "/apply", self._apply)
        app.router.add_post(api + "/deployments/{name}/{action}", self._act("deployments"))
        app.router.add_post(api + "/workers/{name}/{action}", self._act("workers"))
        app.router.add_post(api + "/gpus/{name}/{action}", self._act("gpus"))
        app.router.add_post(api + "/keys", self._create("keys", "key"))
        app.router.add_post(api + "/tokens", self._create("tokens", "token"))
        app.router.add_put(api + "/secrets/{name}", self._put_secret)
        app.router.add_get(api + "/watch", self._watch)
        app.router.add_get(api + "/utilization", self._utilization)
        app.router.add_get(api + "/map", self._map)
        app.router.add_get(api + "/workers/{name}/cache", self._cache)
        for path in (
            "/plan",
            "/plan/drain",
            "/plan/policies",
            "/defrag",
            "/audit",
            "/audit/repair",
            "/pending",
            "/reports/idle",
        ):
            app.router.add_route("*", api + path, self._canned)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get(api + "/{kind}", self._list)
        app.router.add_get(api + "/{kind}/{name}", self._get)
        app.router.add_delete(api + "/{kind}/{name}", self._delete)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.method, request.path, dict(request.query), body))
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return refusal(401, "unauthenticated", "the key is missing or unknown")
        self.before(request.method, request.path)
        response: web.StreamResponse = await (self.refuse or handler)(request)
        return response

    async def _list(self, request: web.Request) -> web.Response:
        if not 1 <= int(request.query.get("limit", "100")) <= _MOST_ITEMS:
            return refusal(400, "invalid", f"limit: must be from 1 to {_MOST_ITEMS}")
        items = list(self.objects[request.match_info["kind"]].values())
        if "deployment" in request.query:
            items = [i for i in items if i["spec"]["deployment"] == request.query["deployment"]]
        if "worker" in request.query and request.match_info["kind"] == "gpus":
            items = [i for i in items if i["status"]["worker"] == request.query["worker"]]
        if about := request.query.get("object"):
            kind, slash, name = about.partition("/")
            if slash:
                kinds = "policies" if kind == "policy" else kind + "s"
                about = f"{kind}:{self.objects[kinds].get(name, {}).get('uid', name)}"
            items = [i for i in items if about in i["objects"]]
        if "reason" in request.query:
            items = [i for i in items if i["reason"] in request.query["reason"].split(",")]
        if "after" in request.query:
            items = [i for i in items if i["at"] > request.query["after"]]
        if "since" in request.query:
            items = [i for i in items if i["id"] > int(request.query["since"])]
        start = int(request.query.get("cursor", "0"))
        end = start + min(int(request.query.get("limit", "100")), 100)
        following = str(end) if end < len(items) else None
        return web.json_response({"items": items[start:end], "next": following})

    async def _get(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["name"]
        self.script(kind, name)
        found = self.objects.get(kind, {}).get(name)
        return web.json_response(found) if found else self._unknown(request)

    async def _delete(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["name"]
        pool: dict[str, Any] = self.secrets if kind == "secrets" else self.objects.get(kind, {})
        if name not in pool:
            return self._unknown(request)
        expected = request.headers.get("If-Match")
        if expected is not None and expected != str(pool[name].get("generation")):
            return refusal(412, "generation_conflict", f"{name} has another generation")
        if kind != "deployments":
            del pool[name]
        else:
            pool[name]["deleted_at"] = now_text()
        return web.json_response({})

    async def _put(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        outcome = self._write(name, await request.json())
        status = 201 if outcome == "created" else 200
        headers = {"X-Gpuward-Outcome": outcome}
        return web.json_response(self.objects["deployments"][name], status=status, headers=headers)

    def _write(self, name: str, spec: Json) -> str:
        before = self.objects["deployments"].get(name)
        outcome = "unchanged"
        if before is None or before["deleted_at"] is not None:
            outcome = "created"
            self.add(deployment(name, "pending", spec=spec))
        elif before["spec"] != {"engine": "simulated", "replicas": 1, **spec}:
            outcome = "updated"
            before["spec"] = spec
            before["generation"] += 1
        return outcome

    async def _put_policy(self, request: web.Request) -> web.Response:
        made = policy(request.match_info["name"], **await request.json())
        self.add(made)
        return web.json_response(made, status=201, headers={"X-Gpuward-Outcome": "created"})

    async def _apply(self, request: web.Request) -> web.Response:
        """All manifests, policies first."""
        items, warnings = [], []
        manifests = (await request.json())["manifests"]
        for one in sorted(manifests, key=lambda one: one["kind"] == "Deployment"):
            name, spec = one["name"], {key: value for key, value in one.items() if key not in ("kind", "name")}
            if one["kind"] == "Deployment":
                outcome, now = self._write(name, spec), self.objects["deployments"][name]
                warnings += now.get("warnings", [])
            else:
                outcome, now = "created", policy(name, **spec)
                self.add(now)
            told = {"kind": one["kind"], "name": name, "outcome": outcome}
            items.append({**told, "uid": now["uid"], "generation": now["generation"]})
        return web.json_response({"items": items, "warnings": warnings})

    def _act(self, kind: str) -> Handler:
        async def act(request: web.Request) -> web.Response:
            found = self.objects[kind].get(request.match_info["name"])
            return web.json_response(found) if found else self._unknown(request)

        return act

    def _create(self, kind: str, secret: str) -> Handler:
        async def create(request: web.Request) -> web.Response:
            made = {"id": str(uuid.uuid4()), "name": "", "created_at": now_text(), "expires_at": now_text(-60)}
            made |= await request.json()
            self.objects[kind][made["id"]] = made
            return web.json_response({**made, secret: f"{secret}-value"}, status=201)

        return create

    async def _put_secret(self, request: web.Request) -> web.Response:
        self.secrets[request.match_info["name"]] = (await request.json())["value"]
        return web.Response(status=204)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(self.canned["models"]) if "models" in self.canned else self._unknown(request)

    async def _canned(self, request: web.Request) -> web.Response:
        return web.json_response(self.canned[request.path.rsplit("/", 1)[1]])

    async def _cache(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.objects["workers"]:
            return self._unknown(request)
        if name not in self.caches:
            return refusal(503, "unreachable", f"the agent of {name} does not answer")
        return web.json_response({"items": self.caches[name], "next": None})

    async def _map(self, request: web.Request) -> web.StreamResponse:
        """The columns of GPUs that name them; others are left out."""
        if self.refuse_map is not None:
            refused: web.StreamResponse = await self.refuse_map(request)
            return refused
        workers = sorted({gpu["status"]["worker"] for gpu in self.objects["gpus"].values()})
        gpus = list(self.objects["gpus"].values())
        columns = {
            "uuid": [gpu["name"] for gpu in gpus],
            "worker": [workers.index(gpu["status"]["worker"]) for gpu in gpus],
            "index": [gpu["status"]["index"] for gpu in gpus],
            "state": ["ok" if gpu["status"].get("present", True) else "absent" for gpu in gpus],
        }
        return web.json_response({"at": now_text(), "workers": {"name": workers}, "gpus": columns, "models": []})

    async def _utilization(self, request: web.Request) -> web.Response:
        query = request.query
        if kind := next((k for k in ("instance", "deployment") if k in query), None):
            instances = self.objects["instances"].values()
            mine = [i for i in instances if query[kind] in (i["name"], i["spec"]["deployment"])]
            uuids = [uuid for i in mine for uuid in i["status"].get("gpus", [])]
        else:
            uuids = query["gpus"].split(",")
        series = [{"gpu": u, "worker": "gpu-1", "values": self.series[u]} for u in uuids if u in self.series]
        answer = {"until": now_text(), "window_s": 600, "slot_s": 10, "series": series, "policy": self.watch}
        return web.json_response(answer)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body.get("stream"):
            return await self._chat_stream(request, body["messages"])
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": "Hello."}}]})

    async def _chat_stream(self, request: web.Request, messages: list[Json]) -> web.StreamResponse:
        """Says how many messages came, and the last one; after `endless` it goes on until the client leaves."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        last = messages[-1]["content"]

        async def say(text: str) -> None:
            event = {"choices": [{"index": 0, "delta": {"content": text}}]}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())

        await say(f"{len(messages)} messages, the last one: ")
        await say(last)
        try:
            while last == "endless":
                await say(" more")
                await asyncio.sleep(0.02)
        except (ConnectionError, asyncio.CancelledError):
            self.chats_cut += 1
            raise
        if last != "break":
            await response.write(b"data: [DONE]\n\n")
        return response

    def tell(self, kind: str, raw: Json | None) -> None:
        """Tells every watch of a change; None ends them."""
        event = None if raw is None else {"type": kind, "object": raw}
        for queue in list(self.watches):
            self._loop.call_soon_threadsafe(queue.put_nowait, event)

    def cut(self) -> None:
        """Breaks every watch off, as a controller that is killed does."""
        for transport in list(self._cuttable):
            self._loop.call_soon_threadsafe(transport.abort)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._loop, queue = asyncio.get_running_loop(), asyncio.Queue[Json | None]()
        kinds = request.query.get("kinds", "deployments,instances,workers").split(",")
        event: Json | None = {"type": "snapshot", "object": {k: list(self.objects[k].values()) for k in kinds}}
        self.watch_asked.append(dict(request.query))
        self.watches.append(queue)
        if request.transport is not None:
            self._cuttable.append(request.transport)
        try:
            while event is not None:
                await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n: still here\n\n".encode())
                event = await queue.get()
        finally:
            self.watches.remove(queue)
        return response

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in self.logs[request.match_info["name"]].splitlines(keepends=True):
            await response.write(line)
        return response

    def _unknown(self, request: web.Request) -> web.Response:
        return refusal(404, "not_found", f"{request.path} does not exist")


@contextmanager
def serving(double: ApiDouble) -> Iterator[ApiDouble]:
    """Serves `double` on a free loopback port."""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    ready = threading.Event()

    async def serve() -> None:
        async with listening(double.app()) as address:
            double.url = f"http://{address}"
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="api double")
    thread.start()
    try:
        assert ready.wait(_START_S)
        yield double
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(_START_S)
        loop.close()
