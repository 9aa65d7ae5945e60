"""Folders that a container needs to read a model: its own, and the targets of its links."""

import itertools
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOST_FILES: Final = 10_000
_MOST_FOLDERS: Final = 16
# Folders of the host itself. Mounts of them would hide the image's, and `/run` has Docker's socket.
_OF_THE_HOST: Final = tuple(
    Path(place)
    for place in ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
)
_OF_A_CONTROLLER: Final = "client.env"  # in its data folder


@dataclass(frozen=True, slots=True)
class ClosedPlaces:
    """Paths that no container may see, since they give control of the host or cluster: credentials, Docker's socket."""

    places: Collection[Path] = ()  # of this agent
    open: Path | None = None  # a folder within them that engines may read: the cache of models

    def first_of(self, paths: Iterable[str]) -> str:
        """The first path that is in a closed place or contains one; empty if none is. Blocks."""
        return next((path for path in paths if self._shows(Path(os.path.realpath(path)))), "")

    def _shows(self, real: Path) -> bool:
        if self.open is not None and real.is_relative_to(os.path.realpath(self.open)):
            return False
        closed = [Path(os.path.realpath(place)) for place in self.places]
        if any(real.is_relative_to(place) or place.is_relative_to(real) for place in closed):
            return True
        return any(os.path.isfile(folder / _OF_A_CONTROLLER) for folder in (real, *real.parents))  # noqa: PTH113 - it raises


def refused_model(models: tuple[str, ...]) -> str:
    """The first model that is a folder of the host itself, which no container gets; empty if none is."""
    return next((model for model in models if _is_of_the_host(Path(os.path.realpath(model)))), "")


def linked_folders(models: tuple[str, ...], closed: ClosedPlaces = ClosedPlaces()) -> tuple[str, ...]:
    """Folders outside of the models with targets of links within them, as in a cache of the hub.

    Broken links, and links into the host's own folders or closed places, are left out. Blocks for a walk.
    """
    folders: dict[str, None] = {}
    for model in models:
        inside = os.path.realpath(model)
        for target in _targets(Path(model)):
            folder = target.parent
            if str(folder) in folders or target.is_relative_to(inside) or _is_of_the_host(folder):
                continue
            if not closed.first_of([str(folder)]):
                folders[str(folder)] = None
            if len(folders) >= _MOST_FOLDERS:
                return tuple(folders)
    return tuple(folders)


def _targets(model: Path) -> Iterator[Path]:
    """Files to which links within a folder lead."""
    try:
        for path in itertools.islice(model.rglob("*"), _MOST_FILES):
            target = _file_behind(path)
            if target is not None:
                yield target
    except OSError:  # a folder that the agent may not enter: its engine may not, either
        return


def _file_behind(path: Path) -> Path | None:
    try:
        target = path.resolve() if path.is_symlink() else None
        return target if target is not None and target.is_file() else None
    except (OSError, RuntimeError):  # Python 3.11 raises RuntimeError for a circle of links
        return None


def _is_of_the_host(folder: Path) -> bool:
    return folder == Path("/") or any(folder.is_relative_to(place) for place in _OF_THE_HOST)
