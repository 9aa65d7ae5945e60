"""`GET /instances/{id}/explain`: the reason why an instance is pending now, and advice. Writes nothing."""

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from controller.api.body import json_response
from controller.api.dry_run.allowances import caller_of_dry_run
from controller.api.dry_run.kept_inventory import KEPT_INVENTORY
from controller.api.errors import ApiError
from controller.api.route import Access, Route
from controller.domain.admission import Holder
from controller.domain.placement import Placed
from controller.engines.registry import engine_for
from controller.scheduling.estimate import asks_for
from controller.scheduling.explain.advice import AdviceRequest, advise
from controller.scheduling.explain.unplaced import with_note
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.place import place
from controller.store.placement.pass_reads import read_holders
from controller.store.placement.plan_reads import Standing, standing_of
from schemas.api.explain import Explain
from schemas.placement_reasons import Reason

_PENDING_PHASES: Final = frozenset({"pending", "analyzing"})


async def get(request: web.Request) -> web.Response:
    async with request.app[KEPT_INVENTORY].snapshot() as snapshot:
        standing = await standing_of(snapshot.connection, request.match_info["id"])
        if standing.phase not in _PENDING_PHASES:
            raise ApiError(409, "not_waiting", f"instance {standing.instance} is {standing.phase}, not pending")
        holders = await read_holders(snapshot.connection, snapshot.cache.holdings)
    passes = caller_of_dry_run(request).passes
    return json_response(await passes.run(explain_instance, snapshot.cache.inventory, standing, holders.staying))


def explain_instance(inventory: Inventory, standing: Standing, holders: Sequence[Holder] = ()) -> Explain:
    """Places the instance in memory, and computes advice if it does not fit."""
    workers, gpus = len(inventory.workers.entries), len(inventory.gpus.uuid)
    if standing.need is None:
        message = f"{Reason.METADATA_UNKNOWN}: {standing.message or 'the analysis of its need is running'}"
        return Explain(workers=workers, gpus=gpus, message=message)
    spec, need, engine, uid = standing.spec, standing.need, engine_for(standing.spec), standing.deployment_uid
    ask = asks_for(spec, need, engine, instance=standing.instance, deployment_uid=uid)
    (decision,) = place(inventory, [ask])
    if isinstance(decision, Placed):
        if standing.explain is not None:  # another reason than capacity, such as a reservation
            return standing.explain
        return Explain(workers=workers, gpus=gpus, fit=1, message="it fits and will be placed in a moment")
    advice = advise(inventory, AdviceRequest(spec, need, engine, uid, decision.explain, holders))
    note = "" if standing.explain is None else standing.explain.note
    return with_note(msgspec.structs.replace(decision.explain, advice=advice), note)


ROUTES: Final = (
    Route(
        "GET", "/api/v1/instances/{id}/explain", get, Access.READ,
        "Explain why a pending instance does not fit, and what would make it fit", "instances", Explain,
    ),
)  # fmt: skip
