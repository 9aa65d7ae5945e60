"""Reads the snapshots and graphs of `top`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from cli.objects.views import read_view
from cli.text.sparkline import Values
from cli.top.snapshot import Snapshot
from cli.transport.client import Api
from cli.transport.paths import path_of

MOST_PRINTED: Final = 512  # GPUs
MOST_LIVE: Final = 16_384  # GPUs
_MOST_INSTANCES: Final = 65_536
_MOST_WORKERS: Final = 16_384
_MOST_SERIES: Final = 128  # GPUs in one URL
_PENDING: Final = ("pending", "analyzing")


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads workers, GPUs and instances, of one worker or of all, and the utilization in the last `window_s`."""

    api: Api
    worker: str | None
    window_s: float

    def all(self, *, most: int, graphs: bool = False) -> Snapshot:
        """The present state, with up to `most` GPUs. `graphs`: with their series."""
        if self.worker is None:
            raws = self.api.items(path_of("workers"), limit=_MOST_WORKERS)
        else:
            raws = [self.api.get(path_of("workers", self.worker))]
        workers = [read_view("WorkerView", raw) for raw in raws]
        raws = self.api.items(path_of("gpus"), limit=most, worker=self.worker)
        gpus = [read_view("GpuView", raw) for raw in raws]
        raws = self.api.items(path_of("instances"), limit=_MOST_INSTANCES, worker=self.worker)
        instances = {view.name: view for view in (read_view("InstanceView", raw) for raw in raws)}
        pending = sum(view.status.phase in _PENDING for view in instances.values())
        return Snapshot(
            url=self.api.url,
            now=datetime.now(UTC),
            window_s=self.window_s,
            workers=workers,
            gpus=gpus,
            gpus_in_all=max(len(gpus), sum(view.status.gpus for view in workers)),
            instances=instances,
            series=self.series([gpu.uid for gpu in gpus]) if graphs else {},
            pending=pending if self.worker is None else None,  # pending instances have no worker
            scope=self.worker,
        )

    def series(self, gpus: Sequence[str]) -> dict[str, Values]:
        """The utilization of these GPUs, by UUID. A GPU without samples may be missing."""
        series: dict[str, Values] = {}
        for start in range(0, len(gpus), _MOST_SERIES):
            uuids = ",".join(gpus[start : start + _MOST_SERIES])
            answer = self.api.get(path_of("utilization"), gpus=uuids, window=f"{self.window_s:.15g}s")
            series |= {known.gpu: known.values for known in read_view("UtilizationView", answer).series}
        return series
