"""The NVML reader as a child process, with a fake driver library."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agent.errors import NoGpusError
from agent.gpus.child_reader import ChildReader
from agent.gpus.reader import GpuWork
from agent.inventory import InventoryWatch
from schemas.wire import HostFacts

FAKE_PYNVML = """
import os, time
from collections import namedtuple

class NVMLError(Exception): pass
class NVMLError_NotSupported(NVMLError): pass
class NVMLError_FunctionNotFound(NVMLError): pass
class NVMLError_NoPermission(NVMLError): pass
class NVMLError_GpuIsLost(NVMLError): pass
class NVMLError_NotFound(NVMLError): pass
NVML_DEVICE_MIG_ENABLE = 1
Memory = namedtuple("Memory", "total used")
Rates = namedtuple("Rates", "gpu")
Process = namedtuple("Process", "pid")
Figure = namedtuple("Figure", "pid timeStamp smUtil")

def fault():
    try:
        return open(os.environ["FAULT"]).read()
    except FileNotFoundError:
        return ""

def nvmlInit():
    if fault() == "no driver":
        raise NVMLError("Driver Not Loaded")
def nvmlSystemGetDriverVersion(): return "580.95"
def nvmlDeviceGetCount():
    if fault() == "hang":
        time.sleep(1000)
    if fault() == "die":
        os._exit(9)
    return 3
def nvmlDeviceGetHandleByIndex(index):
    if fault() == "lost" and index == 1:
        raise NVMLError_GpuIsLost("GPU is lost")
    return index
def nvmlDeviceGetUUID(index): return f"GPU-{index}"
def nvmlDeviceGetName(index): return b"NVIDIA H100"
def nvmlDeviceGetMemoryInfo(index): return Memory(80 * 2**30, index * 2**30)
def nvmlDeviceGetCudaComputeCapability(index): return (9, 0)
def nvmlDeviceGetMigMode(index):
    if index == 0:
        raise NVMLError_NotSupported("Not Supported")
    return (int(index == 2), 0)
def nvmlDeviceGetUtilizationRates(index):
    if index == 2:
        raise NVMLError_NotSupported("Not Supported")
    return Rates(10 * index)
def nvmlDeviceGetHandleByUUID(uuid): return int(uuid.removeprefix("GPU-"))
def nvmlDeviceGetComputeRunningProcesses(index): return [Process(100 + index), Process(200)]
def nvmlDeviceGetGraphicsRunningProcesses(index): raise NVMLError_NotSupported("Not Supported")
reported = {}
def nvmlDeviceGetProcessUtilization(index, since):
    if index == 2:
        raise NVMLError_NotSupported("Not Supported")
    if index == 1 and fault() == "broken":
        raise NVMLError("Unknown Error")
    if fault() == "nothing new":
        raise NVMLError_NotFound("Not Found")
    newest = reported.get(index, 0)
    if since != newest:  # the reader must ask for figures newer than its newest
        raise NVMLError(f"asked for {since}, reported {newest}")
    reported[index] = newest + 10
    return [Figure(200, newest + 5, 30), Figure(200, newest + 10, 40), Figure(100, newest + 4, 250)]
def nvmlDeviceGetRemappedRows(index): return (0, 0, 0, int(fault() == "rows" and index == 0))
"""


Fault = Callable[[str], object]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _readers() -> list[psutil.Process]:
    """The children that read GPUs, without dead ones of other tests."""
    living = (child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE)
    return [child for child in living if "agent.gpus.nvml" in child.cmdline()]


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Sets the driver's fault; "" is none."""
    (tmp_path / "pynvml.py").write_text(FAKE_PYNVML)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("FAULT", str(tmp_path / "fault"))
    return (tmp_path / "fault").write_text


async def test_facts_and_unknown_values(fault: Fault) -> None:
    reader = ChildReader(limit_s=10)
    await reader.open()
    first, second, third = await reader.read() or ()
    assert (first.uuid, first.model, first.memory_mib) == ("GPU-0", "NVIDIA H100", 81920)
    assert (first.compute_capability, first.mig_mode, first.utilization, first.used_mib) == ("9.0", False, 0.0, 0)
    assert (second.utilization, second.used_mib, second.health) == (10.0, 1024, "ok")
    assert (third.mig_mode, third.utilization) == (True, None)
    assert await reader.driver() == "580.95"
    fault("rows")
    first, *_ = await reader.read() or ()
    assert (first.health, "row" in first.health_reason) == ("unhealthy", True)
    await reader.aclose()


async def test_the_processes_of_a_gpu(fault: Fault) -> None:
    reader = ChildReader(limit_s=10)
    await reader.open()
    first = await reader.sample()
    assert first is not None
    assert len(first.gpus) == 3
    # The driver's first figures may be older than the reading.
    assert first.work["GPU-0"] == GpuWork(running=(100, 200), percent={})
    second = await reader.sample()
    assert second is not None
    assert second.work["GPU-1"] == GpuWork(running=(101, 200), percent={200: 40.0, 100: 100.0})
    assert second.work["GPU-2"] == GpuWork(running=(102, 200), percent=None)  # not reported by its driver
    fault("nothing new")
    third = await reader.sample()
    assert third is not None
    assert third.work["GPU-0"].percent == {}
    fault("broken")
    fourth = await reader.sample()
    assert fourth is not None
    assert (len(fourth.gpus), fourth.work.keys()) == (3, {"GPU-0", "GPU-2"})
    await reader.aclose()


async def test_a_lost_gpu_is_reported_as_unhealthy(fault: Fault) -> None:
    reader = ChildReader(limit_s=10)
    await reader.open()
    await reader.read()
    fault("lost")
    first, second, third = await reader.read() or ()
    assert (second.uuid, second.health, second.health_reason) == ("GPU-1", "unhealthy", "GPU is lost")
    assert (second.used_mib, second.utilization) == (None, None)
    assert (first.health, third.health) == ("ok", "ok")
    await reader.aclose()


@pytest.mark.parametrize("how", ["hang", "die"])
async def test_a_hung_or_dead_driver_costs_one_reading(how: str, fault: Fault) -> None:
    clock = Clock()
    reader = ChildReader(limit_s=10, clock=clock)
    await reader.open()
    inventory = InventoryWatch(reader, HostFacts(os="linux", arch="x", hostname="h", memory_mib=1, cpu_milli=1))
    assert len(await inventory.read_gpus() or ()) == 3
    (child,) = _readers()
    fault(how)
    reader._limit_s = 0.3
    assert await inventory.read_gpus() is None
    assert not child.is_running()
    assert len(inventory.devices) == 3  # the last known GPUs stay
    fault("")
    reader._limit_s = 10
    assert await inventory.read_gpus() is None  # backoff
    assert _readers() == []
    clock.now_s = 60.0
    assert len(await inventory.read_gpus() or ()) == 3
    await reader.aclose()


async def test_a_missing_driver_is_an_error_and_leaves_no_child(fault: Fault) -> None:
    fault("no driver")
    reader = ChildReader()
    with pytest.raises(NoGpusError, match="--simulate"):
        await reader.open()
    assert _readers() == []


async def test_the_reader_ignores_a_package_of_its_name_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "__init__.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoGpusError, match="NVML does not load"):
        await ChildReader().open()


async def test_an_invalid_answer_of_the_child_is_unknown() -> None:
    reader = ChildReader((sys.executable, "-c", "print('hello'); import time; time.sleep(100)"), limit_s=10)
    await reader.open()
    assert await reader.read() is None
    await reader.aclose()
