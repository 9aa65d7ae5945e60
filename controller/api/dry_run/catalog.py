"""`GET /catalog`: well-known models, and where the scheduler would place each now. Writes nothing."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from time import monotonic
from typing import Any, Final

from aiohttp import web

from controller.api.dry_run.allowances import PASSES
from controller.api.dry_run.kept_inventory import KEPT_INVENTORY
from controller.api.route import Access, Route
from controller.api.single_flight import SingleFlight
from controller.domain.placement import Placed
from controller.engines.registry import engine_for
from controller.engines.well_known import WellKnownModel, well_known_models
from controller.scheduling.estimate import asks_for
from controller.scheduling.explain.unplaced import explain_unplaced
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.cached_search import find
from controller.store.views.paging import read_time
from schemas.api.catalog import CatalogFit, CatalogLayout, CatalogModel, CatalogView
from schemas.api.needs import LayoutView
from schemas.api.view import to_json

KEPT_S: Final = 3.0  # for which all callers get the same answer
READ_LIMIT_S: Final = 20.0
_BITS_OF_A_BYTE: Final = 8


class Catalog:
    """The latest answer of `compute`."""

    def __init__(self, compute: Callable[[], Awaitable[bytes]], *, clock: Callable[[], float] = monotonic) -> None:
        self._compute = compute
        self._clock = clock
        self._shared = SingleFlight(self._refresh)
        self._answer = b""
        self._as_of = -math.inf

    async def get(self) -> bytes:
        """An answer that was at most `KEPT_S` old at the call."""
        if self._clock() - self._as_of < KEPT_S:
            return self._answer
        return await self._shared.get()

    async def _refresh(self) -> bytes:
        started = self._clock()
        answer = await self._compute()
        self._answer, self._as_of = answer, started
        return answer

    async def close(self) -> None:
        await self._shared.close()


CATALOG: Final = web.AppKey("CATALOG", Catalog)


async def catalog_context(app: web.Application) -> AsyncIterator[None]:
    catalog = app[CATALOG] = Catalog(partial(_compute, app))
    try:
        yield
    finally:
        await catalog.close()


async def get(request: web.Request) -> web.Response:
    return web.Response(body=await request.app[CATALOG].get(), content_type="application/json")


async def _compute(app: web.Application) -> bytes:
    async with asyncio.timeout(READ_LIMIT_S), app[KEPT_INVENTORY].snapshot() as snapshot:
        at = await read_time(snapshot.connection)
    # Without a limit, which would not end its thread.
    return to_json(await app[PASSES].run(catalog_view, snapshot.cache.inventory, at))


def catalog_view(inventory: Inventory, at: datetime) -> CatalogView:
    """Places each model as if it were the only one."""
    inventory.begin_pass()
    return CatalogView(at=at, items=[_model(inventory, model) for model in well_known_models()])


def _model(inventory: Inventory, known: WellKnownModel) -> CatalogModel:
    spec, need, facts = known.spec, known.need, known.facts
    ask = asks_for(spec, need, engine_for(spec), instance="catalog", deployment_uid="")
    placed = find(inventory, ask)
    quantization = facts.get("quantization") or {}
    by_gpus = {layout.gpus: layout.memory_mib for layout in reversed(ask.layouts)}
    return CatalogModel(
        model=spec.model or "",
        source=known.source,
        parameters=None if _is_packed(facts) else facts.get("parameters"),
        quantization=quantization.get("method"),
        bits=quantization.get("bits"),
        weight_bytes=facts["weight_bytes"],
        engines=[name for name, _ in need.by_engine],
        context=need.context,
        sequences=need.sequences,
        layouts=[CatalogLayout(gpus=gpus, memory_mib_per_gpu=by_gpus[gpus]) for gpus in sorted(by_gpus)],
        fits=None if placed is None else _fit(inventory, placed),
        message="" if placed is not None else explain_unplaced(inventory, ask).message,
    )


def _is_packed(facts: Mapping[str, Any]) -> bool:
    """Whether one stored element holds several weights, so that the number of elements is not that of weights."""
    bits = (facts.get("quantization") or {}).get("bits")
    return bits is not None and bits < _BITS_OF_A_BYTE


def _fit(inventory: Inventory, placed: Placed) -> CatalogFit:
    layout = placed.layout
    return CatalogFit(
        engine=placed.engine,
        workers=[inventory.worker(worker).name for worker in placed.workers],
        gpus=[claim.device for claim in placed.claims if inventory.gpu_row(claim.device) is not None],
        memory_mib_per_gpu=layout.memory_mib,
        layout=LayoutView(gpus=layout.gpus, workers=layout.workers, tp=layout.tp, pp=layout.pp, dp=layout.dp),
    )


ROUTES: Final = (
    Route(
        "GET", "/api/v1/catalog", get, Access.READ, "List well-known models, what they need and where they fit now",
        "plan", CatalogView, momentary=True,
    ),
)  # fmt: skip
