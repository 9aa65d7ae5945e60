"""One reader of all GPUs' figures for all watchers. Each round sends the changed figures in columns."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from controller.live.shared_feed import READ_LIMIT_S, Reading, SharedFeed, Stream
from controller.store.core.database import Database
from controller.store.views.gpus import GpuFigure, gpu_figures

ROUND_S: Final = 2.0
_SHARE_OF_ALL: Final = 0.75  # beyond it all figures are shorter than indexes with the changed figures
_COLUMNS: Final = ("utilization", "used_mib", "claimed_mib")


@dataclass(frozen=True, slots=True)
class Round:
    """One round's message."""

    message: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.message)


class GpuRounds:
    """The figures of the last read, in order of GPUs."""

    def __init__(self) -> None:
        self._figures: Sequence[GpuFigure] = ()

    def all(self) -> bytes:
        """The message that names the GPUs in order, with the figures of all."""
        uuids = [figure.uuid for figure in self._figures]
        return orjson.dumps({"type": "gpus", "uuid": uuids, **_columns(self._figures)})

    def next(self, figures: Sequence[GpuFigure]) -> bytes | None:
        """Stores the figures that were read; returns the message of changed figures, or None."""
        before, self._figures = self._figures, figures
        if [figure.uuid for figure in before] != [figure.uuid for figure in figures]:
            return self.all()
        changed = [number for number, pair in enumerate(zip(before, figures, strict=True)) if pair[0] != pair[1]]
        if not changed:
            return None
        index = changed if len(changed) <= _SHARE_OF_ALL * len(figures) else None
        old, new = ([of[n] for n in changed] for of in (before, figures)) if index else (before, figures)
        was, now = _columns(old), _columns(new)
        columns = {name: column for name, column in now.items() if column != was[name]}
        return orjson.dumps({"type": "round", "index": index, **columns})


def _columns(figures: Sequence[GpuFigure]) -> dict[str, list[int | None]]:
    return {name: [getattr(figure, name) for figure in figures] for name in _COLUMNS}


class _GpuReading(Reading[Round]):
    def __init__(self, database: Database) -> None:
        super().__init__("gpu-feed")
        self._database = database
        self._rounds = GpuRounds()

    def _snapshot(self, _stream: Stream[Round]) -> bytes:
        return self._rounds.all()

    async def _run(self) -> None:
        while True:
            async with asyncio.timeout(READ_LIMIT_S), self._database.snapshot() as connection:
                figures = await gpu_figures(connection)
            message = self._rounds.next(figures)
            if message is not None:
                self._hand_out(Round(message))
            self._first.set()
            await asyncio.sleep(ROUND_S)


class GpuFeed(SharedFeed[Round]):
    """The feed of GPUs' figures."""

    def __init__(self, database: Database) -> None:
        super().__init__(lambda: _GpuReading(database))
