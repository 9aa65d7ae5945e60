"""A storm over a real cluster: many deployments with distinct inputs, applied and deleted together."""

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from itertools import count
from typing import Any

import asyncpg
import psutil
from prometheus_client.parser import text_string_to_metric_families

from controller.store.embedded.layout import Layout
from support.processes.cluster import Cluster

ANALYSIS_S = 2
LATE_EVENT = "computation was cancelled late"
LEDGER = ("deployments", "revisions", "intents", "instances", "claims", "processes", "commands")


@dataclass(frozen=True)
class Counted:
    """The controller's metrics of computations."""

    in_flight: int
    started: int
    ended: dict[str, int]
    cancel_buckets: dict[float, int]  # by upper bound in seconds

    @property
    def balanced(self) -> bool:
        """Whether every started computation has ended."""
        return self.started == sum(self.ended.values())

    def cancelled_within(self, seconds: float) -> float:
        """The share of cancels within `seconds`, which is a bucket's bound."""
        return self.cancel_buckets[seconds] / max(1, *self.cancel_buckets.values())

    def cancel_quantile_s(self, share: float) -> float:
        """The bound of the bucket that holds at least `share` of the cancels; 0 without any."""
        total = max(self.cancel_buckets.values(), default=0)
        if not total:
            return 0.0
        return min(bound for bound, n in self.cancel_buckets.items() if n >= share * total)


async def read_counted(cluster: Cluster) -> Counted:
    """Reads them from /metrics."""
    async with cluster.session.get("/metrics") as response:
        text = await response.text()
        assert response.status == 200, text
    in_flight, outcomes, buckets = -1, {}, {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            match sample.name:
                case "gpuward_computations_in_flight":
                    in_flight = int(sample.value)
                case "gpuward_computations_total":
                    outcomes[sample.labels["outcome"]] = int(sample.value)
                case "gpuward_computation_cancel_seconds_bucket":
                    buckets[float(sample.labels["le"])] = int(sample.value)
    started = outcomes.pop("started", 0)
    return Counted(in_flight, started, outcomes, buckets)


@dataclass(frozen=True)
class LateCancel:
    """Where the time of a late cancel went, from the controller's log; in milliseconds.

    Attributes:
        took_ms: from the commit until the computation was gone.
        commit_to_known_ms: until the controller knew, which is the commit itself, its notification and the loop's lag.
        known_to_gone_ms: kill and reaping; 0 for a computation that had no child yet.
        loop_lag_ms: the loop's worst lag of the ten seconds before.
    """

    took_ms: int
    commit_to_known_ms: int
    known_to_gone_ms: int
    loop_lag_ms: int

    def __str__(self) -> str:
        """One line for a report."""
        return (
            f"{self.took_ms} ms: {self.commit_to_known_ms} from commit to known, {self.known_to_gone_ms} from known to"
            f" gone; worst lag of the loop {self.loop_lag_ms}"
        )


def late_cancels(cluster: Cluster) -> list[LateCancel]:
    """All late cancels of the controller's log, which is of JSON lines."""
    found = []
    for line in (cluster.folder / "controller.log").read_text(errors="replace").splitlines():
        if LATE_EVENT in line:
            said = json.loads(line)
            found.append(LateCancel(**{field.name: said[field.name] for field in fields(LateCancel)}))
    return found


class Storm:
    """Applies and deletes through the API; no two of its deployments have the same input.

    Args:
        cluster: a leading controller and its agents.
        size: deployments at a time.
        batch: requests at once.
    """

    def __init__(self, cluster: Cluster, *, size: int, batch: int = 50) -> None:
        self._cluster = cluster
        self._size = size
        self._batch = batch
        self._inputs = count(1024)

    async def blow(self, rounds: int = 2, *, hold_s: float = 0.0) -> float:
        """Applies and deletes all, `rounds` times; returns the monotonic time when the last DELETE was answered.

        In between it waits `hold_s` seconds, in which some are analyzed, placed and started.
        """
        names = [f"storm-{n}" for n in range(self._size)]
        for _ in range(rounds):
            await self._each(names, lambda name: self._cluster.apply(name, args=self.slow_args()))
            await asyncio.sleep(hold_s)
            await self._each(names, self._cluster.delete)
        return time.monotonic()

    def slow_args(self, seconds: float = ANALYSIS_S) -> dict[str, Any]:
        """Args of an analysis that no other deployment has."""
        return {"analysis_seconds": seconds, "memory": f"{next(self._inputs)}MiB"}

    async def apply_slow(self, names: Iterable[str], seconds: float) -> None:
        """Applies deployments whose analyses take `seconds`."""
        await self._each(list(names), lambda name: self._cluster.apply(name, args=self.slow_args(seconds)))

    async def delete(self, names: Iterable[str]) -> None:
        """Deletes them."""
        await self._each(list(names), self._cluster.delete)

    async def _each(self, names: list[str], act: Callable[[str], Any]) -> None:
        for first in range(0, len(names), self._batch):
            await asyncio.gather(*(act(name) for name in names[first : first + self._batch]))


async def left_rows(cluster: Cluster) -> dict[str, int]:
    """Rows of the ledger by table, read from the database."""
    dsn = Layout(cluster.data_dir).url("postgresql")
    async with asyncio.timeout(30):
        connection = await asyncpg.connect(dsn)
        try:
            counts = {table: await connection.fetchval(f"select count(*) from {table}") for table in LEDGER}  # noqa: S608 - own names
        finally:
            await connection.close()
    return {table: n for table, n in counts.items() if n}


async def nothing_left(cluster: Cluster) -> bool:
    """Whether API, database and processes hold nothing of any deployment."""
    if (await cluster.get("/deployments"))["items"] or await cluster.instances():
        return False
    if any(gpu["status"]["claims"] for gpu in (await cluster.get("/gpus"))["items"]):
        return False
    return not await left_rows(cluster) and not cluster.engines()


def controller_rss_mib(cluster: Cluster) -> float:
    """Resident memory of the controller's process."""
    rss: int = psutil.Process(cluster.processes["controller"].pid).memory_info().rss
    return rss / 2**20


def pool_size() -> int:
    """Computations at once: twice the cores that this process, and so the controller, may use."""
    return 2 * len(psutil.Process().cpu_affinity() or [])
