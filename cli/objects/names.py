"""Names as tables print them and as people shorten them: GPUs' short ids, `worker:index`, prefixes. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cli.errors import CliError, NotFoundError
from cli.objects.kind import Kind
from cli.objects.kinds import GPUS
from cli.text.formatting import gpu_name, short_gpu
from cli.transport.near_names import did_you_mean, near
from schemas.printing import first_of

_SHOWN: Final = 5
_FEWEST_OF_UUID: Final = 4  # characters, since shorter prefixes soon fit another GPU


def matching(kind: Kind, text: str, raws: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the objects that fit a text: as their name, else as tables print it, else as a prefix."""
    if not text:
        return []
    objects = list(raws)
    tests = (_is_name, _is_printed, _is_prefix) if kind is GPUS else (_is_name, _is_prefix)
    for fits in tests:
        if names := sorted(str(raw["name"]) for raw in objects if fits(text, raw)):
            return names
    return []


def only_one(kind: Kind, text: str, names: Sequence[str], raws: Iterable[Mapping[str, Any]] = ()) -> str:
    """The name, if `names` has exactly one. Raises `NotFoundError` for none, `CliError` for several.

    `raws`: the objects among which the error searches for names that are like the text.
    """
    if not names:
        meant = did_you_mean(nearest(kind, text, raws)) or f"; list them: gpuward get {kind.plural}"
        raise NotFoundError(f"{kind.singular} {text!r} does not exist{meant}")
    if len(names) > 1:
        raise CliError(f"{kind.singular} {text!r} is not unique: it begins {first_of(names, _SHOWN)}; write more of it")
    return names[0]


def nearest(kind: Kind, text: str, raws: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names that the text may mean; of GPUs as tables print them."""
    return near(text, [printed_name(raw) if kind is GPUS else str(raw["name"]) for raw in raws])


def printed_gpus(text: str, raws: Iterable[Mapping[str, Any]]) -> list[str]:
    """The UUIDs of the GPUs that have this UUID, or that tables print so."""
    objects = list(raws)
    exact = [str(raw["name"]) for raw in objects if _is_name(text, raw)]
    return exact or sorted(str(raw["name"]) for raw in objects if _is_printed(text, raw))


def _is_name(text: str, raw: Mapping[str, Any]) -> bool:
    return bool(raw["name"] == text)


def _is_prefix(text: str, raw: Mapping[str, Any]) -> bool:
    name = str(raw["name"])
    if raw.get("kind") != "Gpu":
        return name.startswith(text)
    return len(text) >= _FEWEST_OF_UUID and (name.partition("-")[2].startswith(text) or name.startswith(text))


def printed_name(gpu: Mapping[str, Any]) -> str:
    """The name of a GPU as tables print it."""
    status = gpu["status"]
    return gpu_name(str(gpu["name"]), status["worker"], status["index"] if _has_index(gpu) else None)


def _is_printed(text: str, raw: Mapping[str, Any]) -> bool:
    """For a GPU: the first block of its UUID, or `worker:index`."""
    return text in (short_gpu(str(raw["name"])), printed_name(raw))


def _has_index(raw: Mapping[str, Any]) -> bool:
    """False for a slice, and for a GPU that is gone: another GPU may have its index."""
    return raw["status"].get("parent") is None and bool(raw["status"].get("present", True))
