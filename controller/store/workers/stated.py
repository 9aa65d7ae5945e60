"""Labels of workers, and networks for their proxies' addresses, which administrators and join tokens state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.domain.events import NewEvent
from controller.store.core.database import Connection, Database
from controller.store.core.events import notify, write_events
from controller.store.core.refusals import NotFoundError
from controller.store.views.workers import worker_by_name
from schemas.api.workers import WorkerView

_READ: Final = """
    select coalesce(s.labels, '{}') as labels, s.networks, w.proxy_address
      from workers w left join stated_workers s on s.worker_id = w.id where w.id = $1"""
_WRITE: Final = """
    insert into stated_workers (worker_id, labels, networks) values ($1, $2, $3)
        on conflict (worker_id) do update set labels = excluded.labels, networks = excluded.networks"""


@dataclass(frozen=True, slots=True)
class Stated:
    """Labels and networks of one worker."""

    labels: Mapping[str, str]  # count if their keys are trusted
    # In which its proxy's address may differ from its agent's; None: it joined before networks were required, and any
    # address is allowed.
    networks: tuple[str, ...] | None = None
    proxy_address: str = ""  # HOST:PORT in its last accepted hello


async def read_stated(connection: Connection, worker_id: str) -> Stated:
    """Returns an empty `Stated` for an unknown worker."""
    row: Any = await connection.fetchrow(_READ, worker_id)
    if row is None:
        return Stated({})
    networks = row["networks"]
    return Stated(row["labels"], None if networks is None else tuple(networks), row["proxy_address"])


async def write_stated(
    connection: Connection, worker_id: Any, labels: Mapping[str, str], networks: Sequence[str] | None
) -> None:
    """In a transaction that has inserted or locked the worker's row."""
    await connection.execute(_WRITE, worker_id, dict(labels), None if networks is None else list(networks))


async def state_worker(
    database: Database, name: str, labels: Mapping[str, str | None], networks: Sequence[str] | None
) -> WorkerView:
    """Changes a worker's labels (None removes a label), and the networks for its proxy (None: unchanged).

    Raises:
        NotFoundError: no live worker has this name.
    """
    async with database.transaction() as connection:
        id_ = await connection.fetchval(
            "select id from workers where name = $1 and deleted_at is null for no key update", name
        )
        if id_ is None:
            raise NotFoundError(f"no worker is named {name!r}; `gpuward get workers` lists them")
        before = await read_stated(connection, id_)
        gone, new = [key for key in labels if labels[key] is None], {k: v for k, v in labels.items() if v is not None}
        stated = {key: value for key, value in before.labels.items() if key not in gone} | new
        kept = before.networks if networks is None else networks
        changed = await connection.fetchval(
            """update workers set labels = (labels - $2::text[]) || $3::jsonb
                where id = $1 and labels <> (labels - $2::text[]) || $3::jsonb returning 1""",
            id_,
            gone,
            new,
        )
        await write_stated(connection, id_, stated, kept)
        if changed or kept != before.networks:
            message = f"an administrator stated labels or networks of worker {name}"
            evidence = {"labels": dict(labels), "networks": list(kept or ())}
            await write_events(connection, [NewEvent("worker_stated", message, (f"worker:{id_}",), evidence)])
            await notify(connection, "worker", [str(id_)])
        return await worker_by_name(connection, name)
