"""The verb `logs`. Colours of engines reach a terminal; other control characters are shown escaped."""

import codecs
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from cli.errors import CliError, NotFoundError
from cli.objects.kinds import DEPLOYMENTS, INSTANCES
from cli.objects.names import matching, nearest, only_one
from cli.runner import client
from cli.transport.client import Api
from cli.transport.near_names import did_you_mean
from cli.transport.paths import path_of
from cli.transport.reading import Reading
from schemas.printing import block

app = typer.Typer()
_MAX_LOGS_AT_ONCE: Final = 64
_COLOUR: Final = re.compile("(\x1b\\[[0-9;:]{0,32}m)")
_UNFINISHED: Final = re.compile("(\x1b(\\[[0-9;:]{0,32})?|\r)\\Z")


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
    with client(ctx, endless=follow) as api:
        query: dict[str, Any] = {"tail": tail, "follow": 1 if follow else None, "previous": 1 if previous else None}
        query |= {"since": since, "timestamps": "true" if timestamps else None}
        if all_:
            deployment, instance = _deployment_of(api, name)
            _copy(api, path_of(DEPLOYMENTS.plural, deployment, "logs"), {**query, "instance": instance}, prefix="")
            return
        paths = [path_of(INSTANCES.plural, instance, "logs") for instance in _instances_named(api, name)]
        if len(paths) == 1:
            _copy(api, paths[0], query, prefix="")
        elif follow:
            _copy_together(api, paths, query)
        else:
            for path in paths:
                _copy(api, path, query, prefix=_prefix(path))


def _deployment_of(api: Api, name: str) -> tuple[str, str | None]:
    """The deployment of this name and None; or the deployment of the instance of this name, and the instance."""
    if api.find(path_of(DEPLOYMENTS.plural, name)) is not None:
        return name, None
    (instance,) = _instances_named(api, name)
    return str(api.get(path_of(INSTANCES.plural, instance))["spec"]["deployment"]), instance


def _prefix(path: str) -> str:
    return f"[{path.split('/')[-2]}] "


def _instances_named(api: Api, name: str) -> list[str]:
    """The instance with this id or the only one whose id begins so; or the instances of the deployment of this name."""
    if api.find(path_of(INSTANCES.plural, name)) is not None:
        return [name]
    if api.find(path_of(DEPLOYMENTS.plural, name)) is None:
        instances = api.items(path_of(INSTANCES.plural))
        begins = matching(INSTANCES, name, instances)
        if not begins:
            known = nearest(DEPLOYMENTS, name, api.items(path_of(DEPLOYMENTS.plural)))
            meant = did_you_mean(known or nearest(INSTANCES, name, instances))
            raise NotFoundError(
                f"neither a deployment nor an instance {name!r} exists{meant or '; list them: gpuward ps'}"
            )
        return [only_one(INSTANCES, name, begins)]
    names = [str(raw["name"]) for raw in api.items(path_of(INSTANCES.plural), deployment=name)]
    if not names:
        raise CliError(f"deployment {name!r} has no instances; see why: gpuward describe deployment {name}")
    if len(names) > _MAX_LOGS_AT_ONCE:
        raise CliError(f"deployment {name!r} has {len(names)} instances; name one of them (gpuward ps {name})")
    return names


class _Copy:
    """Copies a log to stdout, with a prefix before each line."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._text = LogText(colours=sys.stdout.isatty())
        self._rest = ""  # of a line that has not ended

    def write(self, chunk: bytes, *, last: bool = False) -> None:
        shown = self._text.feed(chunk, last=last)
        if self._prefix:
            *lines, self._rest = (self._rest + shown).split("\n")
            shown = "".join(f"{self._prefix}{line}\n" for line in lines)
            shown += f"{self._prefix}{self._rest}\n" if last and self._rest else ""
        sys.stdout.buffer.write(shown.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()


def _copy(api: Api, path: str, query: dict[str, Any], *, prefix: str) -> None:
    copy = _Copy(prefix)
    for chunk in api.stream(path, **query):
        copy.write(chunk)
    copy.write(b"", last=True)


def _copy_together(api: Api, paths: list[str], query: dict[str, Any]) -> None:
    def chunks(path: str) -> Iterator[tuple[_Copy, bytes, bool]]:
        copy = _Copy(_prefix(path))
        for chunk in api.stream(path, **query):
            yield copy, chunk, False
        yield copy, b"", True

    for copy, chunk, last in Reading(*map(chunks, paths)):
        copy.write(chunk, last=last)


class LogText:
    """Turns the chunks of one log into text. A chunk may end within a character or a colour."""

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def feed(self, chunk: bytes, *, last: bool = False) -> str:
        """The text of the next chunk; `last`: the log has ended."""
        text = self._rest + self._decoder.decode(chunk, final=last)
        self._rest = ""
        if not last and (match := _UNFINISHED.search(text)) is not None:
            text, self._rest = text[: match.start()], match[0]
        # Progress bars return to the line's start to overwrite it; here each state is a line of its own.
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not self._colours:
            return block(text)
        return "".join(part if n % 2 else block(part) for n, part in enumerate(_COLOUR.split(text)))
