"""Names as tables print them and as people shorten them: GPUs' short ids, `worker:index`, beginnings. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cli.errors import CliError, NotFoundError
from cli.objects.kind import Kind
from cli.objects.kinds import GPUS
from cli.text.formatting import short_gpu

_SHOWN: Final = 5
_FEWEST_OF_UUID: Final = 4  # characters; fewer would soon mean another GPU


def matching(kind: Kind, text: str, raws: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the objects that the text can mean, by the best way that finds any: complete, printed, beginning."""
    if not text:
        return []
    objects = list(raws)
    ways = (_printed, _begins) if kind is GPUS else (_begins,)
    for way in (_whole, *ways):
        if found := sorted(str(raw["name"]) for raw in objects if way(text, raw)):
            return found
    return []


def only_one(kind: Kind, text: str, found: Sequence[str]) -> str:
    """The one name that was found.

    Raises:
        NotFoundError: there is none.
        CliError: there are several; the message names some.
    """
    if not found:
        raise NotFoundError(f"{kind.singular} {text!r} does not exist; list them: gpuward get {kind.plural}")
    if len(found) > 1:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise CliError(
            f"{kind.singular} {text!r} is not unique: it begins {', '.join(found[:_SHOWN])}{more}; write more of it"
        )
    return found[0]


def printed_gpus(text: str, raws: Iterable[Mapping[str, Any]]) -> list[str]:
    """The UUIDs of the GPUs that have this UUID, or that tables print so; no beginnings."""
    objects = list(raws)
    whole = [str(raw["name"]) for raw in objects if _whole(text, raw)]
    return whole or sorted(str(raw["name"]) for raw in objects if _printed(text, raw))


def _whole(text: str, raw: Mapping[str, Any]) -> bool:
    return bool(raw["name"] == text)


def _begins(text: str, raw: Mapping[str, Any]) -> bool:
    name = str(raw["name"])
    if raw.get("kind") != "Gpu":
        return name.startswith(text)
    return len(text) >= _FEWEST_OF_UUID and (name.partition("-")[2].startswith(text) or name.startswith(text))


def _printed(text: str, raw: Mapping[str, Any]) -> bool:
    """A GPU by the first block of its UUID, or by `worker:index`. A slice has no index."""
    status = raw["status"]
    place = f"{status['worker']}:{status['index']}"
    whole = status.get("parent") is None and status.get("present", True)
    return short_gpu(str(raw["name"])) == text or (whole and place == text)
