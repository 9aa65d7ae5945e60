"""The verb `logs`."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli.errors import CliError, NotFoundError
from cli.objects.kinds import DEPLOYMENTS, INSTANCES
from cli.objects.names import matching, only_one
from cli.runner import run
from cli.text.logs import LogText
from cli.transport.paths import path_of

if TYPE_CHECKING:  # slow to import
    from cli.transport.client import Api

app = typer.Typer()
_MAX_LOGS_AT_ONCE: Final = 64


@app.command()
def logs(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(help="Id of an instance, or name of a deployment for the logs of all its instances.")
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until Ctrl-C.")] = False,
    previous: Annotated[bool, typer.Option("--previous", help="Logs of the previous start.")] = False,
    tail: Annotated[
        int | None,
        typer.Option("--tail", min=0, help="Number of lines to show from the end of each log. Default: 200."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Show only lines written later: 10m, or 2026-11-23T14:05:00Z."),
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Show the time of each line (UTC).")] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="Merge the logs of all replicas and ranks by time, also of new ones.")
    ] = False,
) -> None:
    """Print the logs of engines."""

    async def work(api: "Api") -> None:
        query: dict[str, Any] = {"tail": tail, "follow": 1 if follow else None, "previous": 1 if previous else None}
        query |= {"since": since, "timestamps": "true" if timestamps else None}
        if all_:
            deployment, instance = await _deployment_of(api, name)
            await _copy(
                api, path_of(DEPLOYMENTS.plural, deployment, "logs"), {**query, "instance": instance}, prefix=""
            )
            return
        ids = [path_of(INSTANCES.plural, one, "logs") for one in await _instances_named(api, name)]
        if len(ids) == 1:
            await _copy(api, ids[0], query, prefix="")
        elif follow:
            await _copy_together(api, ids, query)
        else:
            for path in ids:
                await _copy(api, path, query, prefix=_prefix(path))

    run(ctx, work, endless=follow)


async def _deployment_of(api: "Api", name: str) -> tuple[str, str | None]:
    """The deployment with this name, or that of the instance with this name, and the instance."""
    if await api.find(path_of(DEPLOYMENTS.plural, name)) is not None:
        return name, None
    (instance,) = await _instances_named(api, name)
    found = await api.get(path_of(INSTANCES.plural, instance))
    return str(found["spec"]["deployment"]), instance


def _prefix(path: str) -> str:
    return f"[{path.split('/')[-2]}] "


async def _instances_named(api: "Api", name: str) -> list[str]:
    """The instance with this id or the only one that begins so, or the instances of the deployment with this name."""
    if await api.find(path_of(INSTANCES.plural, name)) is not None:
        return [name]
    if await api.find(path_of(DEPLOYMENTS.plural, name)) is None:
        begins = matching(INSTANCES, name, await api.items(path_of(INSTANCES.plural)))
        if not begins:
            raise NotFoundError(f"neither a deployment nor an instance {name!r} exists; list them: gpuward ps")
        return [only_one(INSTANCES, name, begins)]
    found = [str(raw["name"]) for raw in await api.items(path_of(INSTANCES.plural), deployment=name)]
    if not found:
        raise CliError(f"deployment {name!r} has no instances; see why: gpuward describe deployment {name}")
    if len(found) > _MAX_LOGS_AT_ONCE:
        raise CliError(f"deployment {name!r} has {len(found)} instances; name one of them (gpuward ps {name})")
    return found


async def _copy(api: "Api", path: str, query: dict[str, Any], *, prefix: str) -> None:
    """Copies a log to stdout, with a prefix before each line; control characters but colours are shown escaped."""
    out = sys.stdout.buffer
    text = LogText(colours=sys.stdout.isatty())
    rest = ""

    def write(part: str, *, last: bool = False) -> None:
        nonlocal rest
        shown = part
        if prefix:
            *lines, rest = (rest + part).split("\n")
            shown = "".join(f"{prefix}{line}\n" for line in lines)
            shown += f"{prefix}{rest}\n" if last and rest else ""
        out.write(shown.encode("utf-8", "replace"))
        out.flush()

    async for chunk in api.stream(path, **query):
        write(text.feed(chunk))
    write(text.feed(b"", last=True), last=True)


async def _copy_together(api: "Api", paths: list[str], query: dict[str, Any]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for path in paths:
                group.create_task(_copy(api, path, query, prefix=_prefix(path)), name=path)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
