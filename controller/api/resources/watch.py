"""`GET /watch`: a snapshot of what there is, then every change, as server-sent events. No resume: begin anew."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.hints import Pending, Subscription
from controller.api.route import Access, Route
from controller.api.streams import STREAMS, SlowClientError, cut, write
from controller.store.core.database import Database
from controller.store.views.deployments import deployments_by_uid
from controller.store.views.instances import instances_of
from controller.store.views.workers import workers_by_id
from schemas.api.deployments import DeploymentView
from schemas.api.instances import InstanceView
from schemas.api.watch import WatchEvent
from schemas.api.workers import WorkerView

HEARTBEAT_S: Final = 10.0
COALESCE_S: Final = 0.1
_HEADERS: Final = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_DEPLOYMENT_HINTS: Final = ("deployment", "status", "process")
_EVERYTHING: Final = Pending(resync=True, ids={})

Key = tuple[str, str]  # kind, uid
Watched = DeploymentView | InstanceView | WorkerView


class Picture:
    """What one client was told last: a digest of every object, by kind and uid."""

    def __init__(self) -> None:
        self._told: dict[Key, tuple[bytes, dict[str, str]]] = {}

    def difference(self, views: Iterable[Watched], looked_at: "Scope") -> list[dict[str, Any]]:
        """What must be told of `views`; what was told before, falls into the scope and is not among them is gone."""
        events: list[dict[str, Any]] = []
        seen: set[Key] = set()
        for view in views:
            key: Key = (view.kind, view.uid)
            body = view.model_dump(mode="json")
            digest = hashlib.blake2b(orjson.dumps(body), digest_size=16).digest()
            seen.add(key)
            if self._told.get(key, (b"", {}))[0] != digest:
                events.append({"type": "changed", "object": body})
            owner = view.spec.deployment_uid if isinstance(view, InstanceView) else view.uid
            self._told[key] = (digest, {"kind": view.kind, "name": view.name, "uid": view.uid, "owner": owner})
        for key in [key for key, (_, told) in self._told.items() if key not in seen and looked_at.covers(told)]:
            told = self._told.pop(key)[1]
            events.append({"type": "gone", "object": {part: told[part] for part in ("kind", "name", "uid")}})
        return events


class Scope:
    """What a read looked at: everything, or these deployments with their instances, and these workers."""

    def __init__(self, pending: Pending) -> None:
        self.all = pending.resync
        self.deployments = pending.of(*_DEPLOYMENT_HINTS)
        self.workers = pending.of("worker")

    def covers(self, told: Mapping[str, str]) -> bool:
        """Whether an object that was told would have been seen by the read."""
        return self.all or told["owner"] in (self.workers if told["kind"] == "Worker" else self.deployments)

    def __bool__(self) -> bool:
        return self.all or bool(self.deployments) or bool(self.workers)


async def watch(request: web.Request) -> web.StreamResponse:
    """Serves one client until it goes, is too slow, or the server stops."""
    context = request.app[CONTEXT]
    # Subscribed before the snapshot is read: what changes in between is told twice rather than never.
    with context.hints.subscribe() as subscription:
        picture = Picture()
        first = await _read(context.database, Scope(_EVERYTHING))
        picture.difference(first, Scope(_EVERYTHING))
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(request)
        with request.app[STREAMS].registered():
            try:
                await write(response, _frame({"type": "snapshot", "object": _snapshot(first)}))
                await _follow(context.database, subscription, picture, response)
            except (SlowClientError, ConnectionError):
                cut(request)
    return response


async def _follow(
    database: Database, subscription: Subscription, picture: Picture, response: web.StreamResponse
) -> None:
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                pending = await subscription.take()
        except TimeoutError:
            await write(response, b": still here\n\n")
            continue
        scope = Scope(pending)
        if scope:
            events = picture.difference(await _read(database, scope), scope)
            if events:
                await write(response, b"".join(_frame(event) for event in events))
        await asyncio.sleep(COALESCE_S)


async def _read(database: Database, scope: Scope) -> list[Watched]:
    views: list[Watched] = []
    async with database.snapshot() as connection:
        if scope.all or scope.deployments:
            uids = None if scope.all else scope.deployments
            views.extend(await deployments_by_uid(connection, uids))
            views.extend(await instances_of(connection, uids))
        if scope.all or scope.workers:
            views.extend(await workers_by_id(connection, None if scope.all else scope.workers))
    return views


def _snapshot(views: Iterable[Watched]) -> dict[str, Any]:
    lists: dict[str, list[Any]] = {"deployments": [], "instances": [], "workers": []}
    for view in views:
        lists[f"{view.kind.lower()}s"].append(view.model_dump(mode="json"))
    return lists


def _frame(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


ROUTES: Final = (
    Route(
        "GET", "/api/v1/watch", watch, Access.READ, "Follow deployments, instances and workers (server-sent events)",
        "watch", WatchEvent, media="text/event-stream", stream=True,
    ),
)  # fmt: skip
