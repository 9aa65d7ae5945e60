"""How far the pull of an image is, from Docker's words. Pure."""

from collections.abc import Mapping
from typing import Any, Final

_COMES: Final = "Downloading"
_IS_HERE: Final = ("Download complete", "Pull complete", "Already exists", "Verifying Checksum")
_NO_PROGRESS: Final = ("Retrying in", "Waiting")


class PullWords:
    """What Docker has said of the layers of one image."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}  # bytes that are here, and all, by layer

    @property
    def total(self) -> int:
        """Bytes of the layers whose size is known."""
        return sum(total for _, total in self._layers.values())

    @property
    def there(self) -> int:
        """Bytes that are here."""
        return sum(there for there, _ in self._layers.values())

    def take(self, word: Mapping[str, Any]) -> bool:
        """Takes one word; returns whether it tells of progress."""
        layer, status = str(word.get("id", "")), str(word.get("status", ""))
        detail = word.get("progressDetail") or {}
        if status == _COMES and detail.get("total"):
            self._layers[layer] = (int(detail.get("current") or 0), int(detail["total"]))
        elif status in _IS_HERE and layer in self._layers:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        return not status.startswith(_NO_PROGRESS)
