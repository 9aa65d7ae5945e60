"""Where models are served: every running instance that has a port, with its worker's proxy, in one read."""

from dataclasses import dataclass
from typing import Any

from controller.engines.base import EngineProcess, Launch
from controller.engines.registry import engine_for
from controller.store.deployments.observe import spec_from_json
from controller.store.views.paging import Reader

_Key = tuple[Any, int, str]  # deployment, generation, and the engine that placement chose


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running instance as the gateway reaches it."""

    model: str  # the deployment's name
    instance: str
    address: str  # HOST:PORT of the worker's proxy
    secret: str
    request_model: str | None = None  # what its server wants to read as `model`; None: any name


async def read_serving(connection: Reader) -> tuple[frozenset[str], list[Endpoint]]:
    """The names of all live deployments, and the endpoints of those instances of theirs that run."""
    names = await connection.fetch("select name from deployments where deleted_at is null")
    running = await connection.fetch(
        """select d.name, i.id, i.deployment_uid, i.revision, coalesce(i.engine, '') as engine,
                  w.proxy_address, w.proxy_secret
             from instances i
             join deployments d on d.uid = i.deployment_uid and d.deleted_at is null
             join processes p on p.instance_id = i.id and p.epoch = i.epoch and p.rank = 0
             join workers w on w.id = p.worker_id and w.proxy_address <> '' and w.deleted_at is null
            where i.phase = 'running' order by d.name, i.id"""
    )
    revisions = {(row["deployment_uid"], row["revision"], row["engine"]) for row in running}
    processes = await _processes(connection, revisions) if revisions else {}
    endpoints = [
        Endpoint(
            model=row["name"],
            instance=row["id"],
            address=row["proxy_address"],
            secret=row["proxy_secret"],
            request_model=process.request_model,
        )
        for row in running
        if (process := processes.get((row["deployment_uid"], row["revision"], row["engine"]))) is not None
        and process.needs_port
    ]
    return frozenset(row["name"] for row in names), endpoints


async def _processes(connection: Reader, revisions: set[_Key]) -> dict[_Key, EngineProcess]:
    """What these revisions run: whether it serves at all, and what it wants to read as `model`."""
    rows = await connection.fetch(
        """select r.deployment_uid, r.generation, r.spec, x.engine
             from revisions r
             join unnest($1::uuid[], $2::bigint[], $3::text[]) as x (uid, generation, engine)
               on x.uid = r.deployment_uid and x.generation = r.generation""",
        [uid for uid, _, _ in revisions],
        [generation for _, generation, _ in revisions],
        [engine for _, _, engine in revisions],
    )
    found: dict[_Key, EngineProcess] = {}
    for row in rows:
        try:
            spec = spec_from_json(row["spec"])
            process = engine_for(spec).chosen(row["engine"]).process(spec, Launch())
        except ValueError:  # of another version, as after a downgrade: it must not take the others' way away
            continue
        found[row["deployment_uid"], row["generation"], row["engine"]] = process
    return found
