"""Where models are served: every running instance with its worker's proxy, in one read for the gateway."""

from dataclasses import dataclass

from gpuward.controller.store.views.paging import Reader


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running instance as the gateway reaches it."""

    model: str  # the deployment's name
    instance: str
    address: str  # HOST:PORT of the worker's proxy
    secret: str


async def read_serving(connection: Reader) -> tuple[frozenset[str], list[Endpoint]]:
    """The names of all live deployments, and the endpoints of those instances of theirs that run."""
    rows = await connection.fetch(
        """select d.name, i.id, w.proxy_address, w.proxy_secret
             from deployments d
             left join instances i on i.deployment_uid = d.uid and i.phase = 'running'
             left join processes p on p.instance_id = i.id and p.epoch = i.epoch and p.rank = 0
             left join workers w on w.id = p.worker_id and w.proxy_address <> '' and w.deleted_at is null
            where d.deleted_at is null order by d.name, i.id"""
    )
    endpoints = [
        Endpoint(row["name"], row["id"], row["proxy_address"], row["proxy_secret"])
        for row in rows
        if row["proxy_address"]
    ]
    return frozenset(row["name"] for row in rows), endpoints
