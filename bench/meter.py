"""CPU and memory of the processes of a run, and quantiles."""

from collections.abc import Iterable
from contextlib import suppress

import psutil


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class Meter:
    """CPU and memory of the controller, of PostgreSQL (with its ended backends), and of the hosts' processes."""

    def __init__(self, controller: psutil.Process, hosts: list[int]) -> None:
        self.controller = controller
        self.hosts = [psutil.Process(pid) for pid in hosts]
        self.postmaster = next(child for child in controller.children() if child.name() == "postgres")

    def cpu_s(self) -> tuple[float, float, float]:
        own = self.controller.cpu_times()
        hosts = sum(sum(process.cpu_times()[:2]) for process in self.hosts)
        top = self.postmaster.cpu_times()
        postgres = top.user + top.system + top.children_user + top.children_system
        for child in self.postmaster.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has just ended; its parent counts its time
                times = child.cpu_times()
                postgres += times.user + times.system
        return own.user + own.system, postgres, hosts

    def memory_mib(self) -> tuple[float, float]:
        """The controller's resident size; PostgreSQL's proportional size, since its backends share buffers."""
        servers = [self.postmaster, *self.postmaster.children(recursive=True)]
        pss = 0
        for server in servers:
            with suppress(psutil.NoSuchProcess):
                pss += server.memory_full_info().pss
        return self.controller.memory_info().rss / 2**20, pss / 2**20
