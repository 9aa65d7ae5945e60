"""The verb `models`: the models of deployments and of workers' caches."""

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import typer

from cli.errors import CliError, NotFoundError
from cli.objects.kind import Column, Kind, table_of
from cli.objects.kinds import DEPLOYMENTS, INSTANCES, WORKERS
from cli.printing.output import Format, ListOutputOption, Output, print_table
from cli.runner import client
from cli.text.formatting import age, local_time, or_dash
from cli.text.models import Cached, ModelRow, model_rows
from cli.transport.client import Api
from cli.transport.near_names import did_you_mean, near
from cli.transport.paths import Json, checked_name, path_of
from cli.verbs.get import print_objects
from schemas.printing import block, first_of
from schemas.units import format_bytes

app = typer.Typer()
_AT_ONCE: Final = 16  # caches, which agents answer for
_SILENCE_S: Final = 10.0
_MOST_MODELS: Final = 1000  # of one cache: the longest page of the API
_NAMED: Final = 5


def _cached_on(row: ModelRow) -> str:
    return ", ".join(f"{on.worker}{'' if on.current else ' (another revision)'}" for on in row.cached)


def _size(row: ModelRow) -> str:
    return format_bytes(max(on.size_bytes for on in row.cached)) if row.cached else ""


MODELS: Final = Kind(
    "model",
    "models",
    "",
    (
        Column("NAME", lambda m, _: or_dash(m.deployment)),
        Column("STATE", lambda m, _: m.state),
        Column("READY", lambda m, _: or_dash(m.ready), rank=3),
        Column("MODEL", lambda m, _: or_dash(m.model), rank=1),
        Column("ALIASES", lambda m, _: or_dash(", ".join(m.aliases)), rank=4),
        Column("RUNNING ON", lambda m, _: or_dash(", ".join(m.running_on)), rank=5),
        Column("CACHED ON", lambda m, _: or_dash(_cached_on(m)), rank=2),
        Column("AGE", lambda m, now: age(m.created_at, now), rank=6),
        Column("ENGINE", lambda m, _: or_dash(", ".join(m.engines)), wide=True, rank=7),
        Column("SIZE", lambda m, _: or_dash(_size(m)), wide=True, rank=8),
        Column("LAST USED", lambda m, _: local_time(m.used_at), wide=True, rank=9),
        Column("CREATED", lambda m, _: local_time(m.created_at), wide=True, rank=10),
    ),
)


@app.command()
def models(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="Names, aliases or models. Default: all."),
    ] = None,
    output: ListOutputOption = Format.TABLE,
) -> None:
    """List models: their names, and where they run and are cached.

    The state is that of the deployment, such as running, asleep or stopped. A model that no deployment has, but that a
    worker has fetched from the hub, is `cached`. For programs each item joins a deployment, its instances and the
    caches of workers. Workers whose cache cannot be read are named on stderr.
    """
    with client(ctx) as api:
        caches, unread = _caches(api, api.items(path_of(WORKERS.plural)))
        deployments = api.items(path_of(DEPLOYMENTS.plural))
        rows = model_rows(deployments, api.items(path_of(INSTANCES.plural)), caches)
        _print(_picked(rows, names or []), output)
        if unread:
            print(block(f"gpuward: the cache of {first_of(unread, _NAMED)} cannot be read"), file=sys.stderr)


def _picked(rows: list[ModelRow], names: list[str]) -> list[ModelRow]:
    for name in names:
        checked_name(name)
        if not any(name in row.names for row in rows):
            meant = did_you_mean(near(name, [known for row in rows for known in row.names]))
            raise NotFoundError(f"model {name!r} does not exist{meant or '; list them: gpuward models'}")
    return [row for row in rows if not names or row.names & set(names)]


def _print(rows: list[ModelRow], output: Output) -> None:
    if isinstance(output, Format) and not output.for_programs:
        table = table_of(MODELS, rows, datetime.now(UTC), wide=output is Format.WIDE)
        print_table(table, empty="no models found")
        return
    print_objects(MODELS, [row.as_json() for row in rows], output)


def _caches(api: Api, workers: list[Json]) -> tuple[dict[str, list[Cached]], list[str]]:
    """The cached models by name, and the workers whose cache cannot be read. Those that are away are not waited for."""
    found: dict[str, list[Cached]] = {}
    connected = {str(worker["name"]): bool(worker["status"].get("connected", True)) for worker in workers}
    unread = [name for name, is_connected in connected.items() if not is_connected]
    names = [name for name, is_connected in connected.items() if is_connected]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for name, items in zip(names, pool.map(lambda name: _cache(api, name), names), strict=True):
            if items is None:
                unread.append(name)
            for item in items or ():
                found.setdefault(str(item["name"]), []).append(Cached.of(name, item))
    return found, sorted(unread)


def _cache(api: Api, worker: str) -> list[Json] | None:
    """Read as a stream, which has a connection of its own; None if the agent does not answer, or is too old."""
    try:
        path = path_of(WORKERS.plural, worker, "cache")
        parts = api.for_thread().stream(path, silence_s=_SILENCE_S, limit=_MOST_MODELS)
        items: list[Json] = msgspec.json.decode(b"".join(parts))["items"]
    except (CliError, msgspec.DecodeError, KeyError):
        return None
    return items
