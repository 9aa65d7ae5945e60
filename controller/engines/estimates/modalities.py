"""Whether the args of vLLM or SGLang leave out a part of a model with a vision tower."""

import json
from typing import Final

from controller.engines.arguments.flags import stated, text
from schemas.manifest.deployment import DeploymentSpec

_LANGUAGE_ONLY: Final = ("language-model-only", "language-only")
_TOWER_ONLY: Final = ("mm-encoder-only", "encoder-only")
_SEEN: Final = ("image", "video")


def language_only(spec: DeploymentSpec) -> bool:
    """Whether the server loads no tower and takes no images: by a switch, or since no image and no video is allowed."""
    if any(stated(spec, (name,)) is True for name in _LANGUAGE_ONLY) or stated(spec, ("enable-multimodal",)) is False:
        return True
    limits = _limits(text(spec, "limit-mm-per-prompt") or "")
    return all(limits.get(kind) == 0 for kind in _SEEN)


def tower_only(spec: DeploymentSpec) -> bool:
    """Whether the server loads only the tower, which keeps no cache."""
    return any(stated(spec, (name,)) is True for name in _TOWER_ONLY)


def _limits(written: str) -> dict[str, int]:
    """The numbers in `{"image": 0}`, `{"image": {"count": 0}}` or `image=0,video=0`."""
    try:
        found = json.loads(written)
    except (ValueError, RecursionError):
        pairs = (pair.partition("=") for pair in written.split(","))
        return {kind.strip(): int(number) for kind, _, number in pairs if number.strip().isdecimal()}
    items = found.items() if isinstance(found, dict) else ()
    counts = ((kind, given.get("count") if isinstance(given, dict) else given) for kind, given in items)
    return {kind: number for kind, number in counts if isinstance(number, int) and not isinstance(number, bool)}
