"""Watch: a snapshot of deployments, instances and workers, then every change, as server-sent events. No resume."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson
from aiohttp import web

from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.route import Access, Route
from controller.api.streams import SlowClientError, cut, write
from controller.live.change_fanout import Changes, Subscription
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
_DEPLOYMENT_KINDS: Final = ("deployment", "status", "process")
_ALL_CHANGES: Final = Changes(resync=True, ids={})

Key = tuple[str, str]  # kind, uid
Watched = DeploymentView | InstanceView | WorkerView


class SentObjects:
    """The objects as one client last received them: a digest of each, by kind and uid."""

    def __init__(self) -> None:
        self._sent: dict[Key, tuple[bytes, dict[str, str]]] = {}

    def difference(self, views: Iterable[Watched], scope: "ReadScope") -> list[dict[str, Any]]:
        """The events to send: views that changed, and sent objects within the scope that are gone from `views`."""
        events: list[dict[str, Any]] = []
        seen: set[Key] = set()
        for view in views:
            key: Key = (view.kind, view.uid)
            body = view.model_dump(mode="json")
            digest = hashlib.blake2b(orjson.dumps(body), digest_size=16).digest()
            seen.add(key)
            if self._sent.get(key, (b"", {}))[0] != digest:
                events.append({"type": "changed", "object": body})
            owner = view.spec.deployment_uid if isinstance(view, InstanceView) else view.uid
            self._sent[key] = (digest, {"kind": view.kind, "name": view.name, "uid": view.uid, "owner": owner})
        for key in [key for key, (_, sent) in self._sent.items() if key not in seen and scope.covers(sent)]:
            gone = self._sent.pop(key)[1]
            events.append({"type": "gone", "object": {part: gone[part] for part in ("kind", "name", "uid")}})
        return events


class ReadScope:
    """The objects that a read covers: all, or some deployments with their instances, and some workers."""

    def __init__(self, changes: Changes) -> None:
        self.all = changes.resync
        self.deployments = changes.of(*_DEPLOYMENT_KINDS)
        self.workers = changes.of("worker")

    def covers(self, sent: Mapping[str, str]) -> bool:
        """Whether the read would have returned this object if it still existed."""
        return self.all or sent["owner"] in (self.workers if sent["kind"] == "Worker" else self.deployments)

    def __bool__(self) -> bool:
        return self.all or bool(self.deployments) or bool(self.workers)


async def watch(request: web.Request) -> web.StreamResponse:
    """`GET /watch`: streams until the client disconnects, is too slow, or the server stops."""
    context = request.app[CONTEXT]
    # Subscribed before the snapshot: a change in between is sent twice rather than never.
    with context.changes.subscribe(request[PRINCIPAL].key_id) as subscription:
        sent = SentObjects()
        first = await _read(context.database, ReadScope(_ALL_CHANGES))
        sent.difference(first, ReadScope(_ALL_CHANGES))
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(request)
        try:
            await write(response, _frame({"type": "snapshot", "object": _snapshot(first)}))
            await _follow(context.database, subscription, sent, response)
        except (SlowClientError, ConnectionError):
            cut(request)
    return response


async def _follow(
    database: Database, subscription: Subscription, sent: SentObjects, response: web.StreamResponse
) -> None:
    while True:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                changes = await subscription.take()
        except TimeoutError:
            await write(response, b": still here\n\n")
            continue
        scope = ReadScope(changes)
        if scope:
            events = sent.difference(await _read(database, scope), scope)
            if events:
                await write(response, b"".join(_frame(event) for event in events))
        await asyncio.sleep(COALESCE_S)


async def _read(database: Database, scope: ReadScope) -> list[Watched]:
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
