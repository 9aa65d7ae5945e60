"""GPUs that are lost, silent or renumbered, and a driver's library that hangs, dies or is replaced."""

import sys
from pathlib import Path

import pytest

from agent.errors import NoGpusError
from agent.gpus.child_reader import ChildReader
from agent.host_inventory.inventory import InventoryWatch
from schemas.wire import ReportedHost
from support.nvml.false_driver import FalseDriver
from support.nvml.reader import A, B, Reader, living_readers

HOST = ReportedHost(os="linux", arch="x", hostname="h", memory_mib=1, cpu_milli=1)


async def test_a_lost_gpu_and_its_return(driver: FalseDriver, reader: Reader) -> None:
    driver.set(A, used=100, util=7)
    await reader.open()
    await reader.read()
    driver.add(f"fail * 15 {A}")
    first, second = await reader.after(1)
    assert (first.uuid, first.health, first.health_reason) == (A, "unhealthy", "gpu_lost: GPU is lost")
    assert (first.used_mib, first.utilization, first.details, first.memory_mib) == (None, None, None, 81559)
    assert second.health == "ok"
    driver.only()
    first, second = await reader.after(1)
    assert (first.health, first.used_mib, second.health) == ("ok", 100, "ok")


async def test_a_gpu_that_was_never_readable_exists(driver: FalseDriver, reader: Reader) -> None:
    driver.add(f"fail * 999 {A}")
    await reader.open()
    first, second = await reader.read() or ()
    assert (first.uuid, first.health, first.memory_mib) == ("GPU-unreadable-0-host-1", "unhealthy", 0)
    assert (second.uuid, second.health) == (B, "ok")
    driver.only()
    assert [gpu.uuid for gpu in await reader.after(1)] == [A, B], "it has its own name now"


async def test_a_gpu_that_cannot_be_read_for_a_moment_is_unknown_then_unhealthy(
    driver: FalseDriver, reader: Reader
) -> None:
    await reader.open()
    await reader.read()
    driver.add(f"fail * 999 {A}")
    assert (await reader.by_uuid(1))[A].health == "unknown"
    gpu = (await reader.by_uuid(6))[A]
    assert (gpu.health, gpu.health_reason) == ("unhealthy", "gpu_unreadable: Unknown Error")


async def test_a_new_child_tries_a_gpu_that_stays_unreadable(driver: FalseDriver, reader: Reader) -> None:
    await reader.open()
    driver.add(f"fail * 999 {A}")
    await reader.after(1)
    (child,) = living_readers()
    await reader.after(21)
    assert not child.is_running()
    driver.only()
    assert (await reader.by_uuid(1))[A].health == "ok"


async def test_indexes_that_change_belong_to_the_same_gpus(driver: FalseDriver, reader: Reader) -> None:
    driver.set(A, used=1)
    driver.set(B, used=2)
    await reader.open()
    await reader.read()
    driver.gpus = {B: driver.gpus[B], A: driver.gpus[A]}
    driver.write()
    assert [(gpu.uuid, gpu.index, gpu.used_mib) for gpu in await reader.after(1)] == [(B, 0, 2), (A, 1, 1)]
    driver.add(f"fail * 15 {A}")
    gpus = await reader.by_uuid(1)
    assert (gpus[A].health_reason, gpus[B].health) == ("gpu_lost: GPU is lost", "ok")


async def test_a_gpu_that_is_no_longer_listed_is_unknown_and_then_gone(driver: FalseDriver, reader: Reader) -> None:
    await reader.open()
    await reader.read()
    kept = driver.gpus.pop(A)
    driver.write()
    gpus = await reader.by_uuid(1)
    assert (gpus[A].health, gpus[A].used_mib, gpus[B].index) == ("unknown", None, 0)
    assert list(await reader.by_uuid(6)) == [B]
    driver.gpus[A] = kept
    driver.write()
    assert (await reader.by_uuid(1))[A].health == "ok"


@pytest.mark.parametrize(("fault", "code"), [
    ("hang nvmlDeviceGetMemoryInfo 600", "nvml_hang"), ("exit nvmlDeviceGetMemoryInfo 9", "nvml_crashed"),
])  # fmt: skip
async def test_a_hung_or_dead_driver_costs_one_reading(driver: FalseDriver, fault: str, code: str) -> None:
    reader = Reader()
    await reader.open()
    inventory = InventoryWatch(reader, HOST)
    assert len(await inventory.read_gpus() or ()) == 2
    (child,) = living_readers()
    driver.add(fault)
    reader._limit_s = 0.3
    told = await inventory.read()
    assert (told.gpus, told.gpus_error.split(":")[0]) == (None, code)
    assert not child.is_running()
    assert len(inventory.devices) == 2  # the last known GPUs stay
    driver.only()
    reader._limit_s = 20
    assert await inventory.read_gpus() is None  # backoff
    assert living_readers() == []
    reader.clock.now_s = 60.0
    told = await inventory.read()
    assert (len(told.gpus or ()), told.gpus_error) == (2, "")
    await reader.aclose()


async def test_a_driver_upgrade_replaces_the_child(driver: FalseDriver, reader: Reader) -> None:
    await reader.open()
    await reader.read()
    driver.change_driver("590.10.01")
    assert await reader.read() is None
    assert reader.error().startswith("driver_mismatch: ")
    assert len(await reader.after(15)) == 2, "a new process loads the new library"
    assert (await reader.driver(), reader.error()) == ("590.10.01", "")
    driver.change_driver(None)
    assert await reader.read() is None
    for _ in range(6):
        assert await reader.after(15) == ()
        assert reader.error().startswith("nvml_failed: ")
    driver.change_driver("590.10.01")
    assert len(await reader.after(15)) == 2, "it never waits for longer than 15 s"


async def test_a_new_child_that_is_slow_holds_nothing_up(driver: FalseDriver) -> None:
    reader = Reader()
    await reader.open()
    (child,) = living_readers()
    child.kill()
    reader._limit_s = 0.1
    assert await reader.read() is None
    driver.add("hang nvmlInitWithFlags 0.5")
    reader.clock.now_s += 1
    assert await reader.read() is None
    reader._limit_s = 20
    assert len(await reader.read() or ()) == 2, "the reading that had begun goes on"
    await reader.aclose()


async def test_a_missing_driver_is_an_error_and_leaves_no_child(driver: FalseDriver) -> None:
    driver.change_driver(None)
    reader = ChildReader()
    with pytest.raises(NoGpusError, match="--simulate"):
        await reader.open()
    assert living_readers() == []


async def test_without_the_library_the_advice_is_to_install_the_extra() -> None:
    program = "import sys; sys.modules['pynvml'] = None; from agent.gpus.nvml import main; main()"
    reader = ChildReader((sys.executable, "-c", program))
    with pytest.raises(NoGpusError, match=r"gpuward\[agent\]") as refused:
        await reader.open()
    assert "driver" not in str(refused.value)
    assert reader.error().startswith("nvml_library_missing: ")


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
