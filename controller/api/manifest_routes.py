"""The routes of a resource that users write as a manifest: list, read, apply and delete.

`ETag` returns the generation that was read; `If-Match` applies or deletes only that generation.
`If-None-Match: *` applies only if the object does not exist.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from aiohttp import web
from pydantic import BaseModel

from controller.api.body import json_response, read_body
from controller.api.context import CONTEXT
from controller.api.parameters import expected_generation, expected_state, new_name
from controller.api.read_routes import ReadPage, list_route
from controller.api.route import Access, Route
from controller.live.database_full import while_full
from controller.store.core.database import Reader
from schemas.api.deployments import DeploymentView
from schemas.api.policies import PolicyView
from schemas.api.view import View
from schemas.manifest.strict_yaml import read_json

OUTCOME_HEADER: Final = "X-Gpuward-Outcome"  # of an apply: created, unchanged, updated or replaced
ManifestView: TypeAlias = DeploymentView | PolicyView


class Applied(Protocol):
    """The result of an apply: the object, and the value of the outcome header."""

    @property
    def view(self) -> ManifestView: ...

    @property
    def outcome(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ManifestResource:
    """One such resource.

    Attributes:
        path: the list's path, to which an object's name is added.
        noun: the word in summaries, such as `deployment`.
        parse: (body, name in the path); raises ManifestError.
        apply: (database, name, spec, *, if_match, longest_window_s).
        delete: (database, name, *, if_match).
        of_caller: further arguments of `apply`, which depend on the caller.
        delete_status: 202 if the object is removed later.
    """

    path: str
    noun: str
    plural: str
    page: type[View]
    view: type[View]
    spec: type[BaseModel]
    parse: Callable[[object, str], BaseModel]
    read_page: ReadPage
    read: Callable[[Reader, str], Awaitable[ManifestView]]
    apply: Callable[..., Awaitable[Applied]]
    delete: Callable[..., Awaitable[ManifestView]]
    delete_status: int = 200
    of_caller: Callable[[web.Request], Mapping[str, Any]] = lambda _request: {}

    def routes(self) -> tuple[Route, ...]:
        path, tag = self.path + "/{name}", self.path.rpartition("/")[2]
        applying, deleting = (f"{verb} a {self.noun} (If-Match: generation)" for verb in ("Apply", "Delete"))
        return (
            list_route(self.path, self.read_page, f"List {self.plural}", self.page),
            Route("GET", path, self._get, Access.READ, f"Read a {self.noun}", tag, self.view),
            Route("PUT", path, self._put, Access.OPERATE, applying, tag, self.view, self.spec, expects="state"),
            Route("DELETE", path, self._delete, Access.OPERATE, deleting, tag, self.view, status=self.delete_status,
                  expects="generation"),
        )  # fmt: skip

    async def _get(self, request: web.Request) -> web.Response:
        database = request.app[CONTEXT].database
        async with database.snapshot() as connection:
            view = await self.read(connection, request.match_info["name"])
        return json_response(while_full(view, full=database.space.full), headers=etag(view))

    async def _put(self, request: web.Request) -> web.Response:
        name = new_name(request)
        spec = self.parse(read_json(await read_body(request)), name)
        context, if_match = request.app[CONTEXT], expected_state(request)
        applied = await self.apply(
            context.database,
            name,
            spec,
            if_match=if_match,
            longest_window_s=context.longest_window_s,
            **self.of_caller(request),
        )
        status = 201 if applied.outcome == "created" else 200
        return json_response(
            applied.view, status=status, headers={**etag(applied.view), OUTCOME_HEADER: applied.outcome}
        )

    async def _delete(self, request: web.Request) -> web.Response:
        name, if_match = request.match_info["name"], expected_generation(request)
        view = await self.delete(request.app[CONTEXT].database, name, if_match=if_match)
        return json_response(view, status=self.delete_status)


def etag(view: ManifestView) -> dict[str, str]:
    """The `ETag` header: the object's generation."""
    return {"ETag": f'"{view.generation}"'}
