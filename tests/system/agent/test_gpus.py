"""What the NVML reader reads, with nvidia-ml-py's own code over a false driver library: fields, processes, slices."""

import pytest

from agent.gpus.reader import GpuWork
from agent.host_inventory.inventory import InventoryWatch
from schemas.wire import ReportedHost
from support.nvml.false_driver import GPUS, SLICES, FalseDriver
from support.nvml.reader import MIB_OF_HOST, A, B, Reader, cut_into_slices

HOST = ReportedHost(os="linux", arch="x", hostname="h", memory_mib=1, cpu_milli=1)


async def test_facts(driver: FalseDriver, reader: Reader) -> None:
    driver.set(A, mem=81559, used=1200, util=55, name="NVIDIA_H100", cc="9.0", power=350500, temp=61, throttle=4)
    driver.set(
        A, rows="1,2,1,0", nvlinks=18, numa=0, ecc_uncorrected=3, compute_mode=3, limit=700000, bus="0000:07:00.0"
    )
    driver.set(B, util="none", mig="none", numa=1)
    await reader.open()
    first, second = await reader.read() or ()
    assert (first.uuid, first.index, first.model, first.compute_capability) == (A, 0, "NVIDIA H100", "9.0")
    assert (first.memory_mib, first.used_mib, first.utilization, first.health) == (81559, 1200, 55.0, "ok")
    assert await reader.driver() == "580.95.05"
    about = first.details
    assert about is not None
    assert (about.power_w, about.power_limit_w, about.temperature_c, about.throttle) == (350.5, 700, 61, ("power_cap",))
    assert (about.rows_corrected, about.rows_uncorrected, about.rows_pending, about.rows_failed) == (1, 2, True, False)
    assert (about.ecc_uncorrected, about.nvlinks, about.numa_node, about.compute_mode) == (
        3,
        18,
        0,
        "exclusive_process",
    )
    assert (about.recovery, about.peers, about.pcie_generation) == ("none", {B: "system"}, 5)
    assert (about.pci_bus, about.persistence) == ("0000:07:00.0", True)
    assert (second.mig_mode, second.utilization) == (False, None)
    assert second.details is not None
    assert {"utilization", "mig_mode", "nvlinks"} <= set(second.details.unsupported)


async def test_what_nvlinks_lead_to(driver: FalseDriver, reader: Reader) -> None:
    driver.set(A, bus="00000000:07:00.0", nvlinks=18, linked="00000000:0A:00.0*6,switch*10,00000000:FF:00.0*2")
    driver.set(B, bus="00000000:0a:00.0", nvlinks=4, linked="00000000:07:00.0*18")
    await reader.open()
    first, second = (gpu.details for gpu in await reader.read() or ())
    assert first is not None
    assert second is not None
    assert first.nvlink_peers == {B: 6, "switch": 10, "00000000:ff:00.0": 2}
    assert (second.nvlinks, second.nvlink_peers) == (4, {A: 4}), "links that are down lead nowhere"


FIELDS = {
    "utilization": ("util", "nvmlDeviceGetUtilizationRates"),
    "compute_capability": ("cc", "nvmlDeviceGetCudaComputeCapability"),
    "power_w": ("power", "nvmlDeviceGetPowerUsage"),
    "power_limit_w": ("limit", "nvmlDeviceGetEnforcedPowerLimit"),
    "energy_j": ("energy", "nvmlDeviceGetTotalEnergyConsumption"),
    "temperature_c": ("temp", "nvmlDeviceGetTemperature"),
    "sm_clock_mhz": ("sm_clock", "nvmlDeviceGetClockInfo"),
    "throttle": ("throttle", "nvmlDeviceGetCurrentClocksEventReasons"),
    "ecc_uncorrected": ("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors"),
    "remapped_rows": ("rows", "nvmlDeviceGetRemappedRows"),
    "recovery": ("recovery", "nvmlDeviceGetFieldValues"),
    "numa_node": ("numa", "nvmlDeviceGetNumaNodeId"),
    "pci_bus": ("bus", "nvmlDeviceGetPciInfo_v3"),
    "pcie_width": ("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    "compute_mode": ("compute_mode", "nvmlDeviceGetComputeMode"),
    "persistence": ("persistence", "nvmlDeviceGetPersistenceMode"),
    "mig_mode": ("mig", "nvmlDeviceGetMigMode"),
}


async def test_each_field_is_a_value_unsupported_or_an_error(driver: FalseDriver, reader: Reader) -> None:
    driver.set(A, **{key: "none" for key, _ in FIELDS.values()})
    driver.add(*(f"fail {function} 999 {B}" for _, function in FIELDS.values()))
    await reader.open()
    without, failing = await reader.read() or ()
    assert without.details is not None
    assert failing.details is not None
    assert FIELDS.keys() <= set(without.details.unsupported)
    assert without.details.errors == {}
    assert failing.details.errors.items() >= dict.fromkeys(FIELDS, "Unknown Error").items()
    assert not FIELDS.keys() & set(failing.details.unsupported)
    assert (without.health, failing.health) == ("ok", "ok"), "one field condemns no GPU"


async def test_a_gpu_that_cannot_be_used_exists_with_a_reason(driver: FalseDriver, reader: Reader) -> None:
    cases: list[tuple[dict[str, object], str, str, int]] = [
        ({"mem": "none"}, "unhealthy", "unified_memory", MIB_OF_HOST),
        ({"mem": "!999"}, "unhealthy", "memory_unreadable", 0),
        ({"mem": 2**43}, "unhealthy", "memory_unreadable", 0),
        ({"rows": "0,1,0,1"}, "unhealthy", "row_remap_failed", 81559),
        ({"recovery": 1}, "unhealthy", "recovery_wanted", 81559),
        ({"recovery": 3}, "ok", "", 81559),
    ]
    driver.gpus = dict(zip(GPUS, (values for values, *_ in cases), strict=False))
    driver.write()
    await reader.open()
    found = await reader.read() or ()
    assert [(g.health, g.health_reason.split(":")[0], g.memory_mib) for g in found] == [case[1:] for case in cases]


async def test_impossible_figures_are_unknown_and_cost_nothing_else(driver: FalseDriver, reader: Reader) -> None:
    driver.set(A, util=101, used=f"+{2**64 - 1}", power=2**32 - 1)
    await reader.open()
    inventory = InventoryWatch(reader, HOST)
    first, second = await inventory.read_gpus() or ()
    assert (first.utilization, first.used_mib, first.memory_mib, first.health) == (None, None, 81559, "ok")
    assert first.details is not None
    assert "power_w" in first.details.unsupported
    assert (second.utilization, second.used_mib) == (0.0, 0)
    assert inventory.take_impossible() == 2


async def test_the_processes_of_a_gpu(driver: FalseDriver, reader: Reader) -> None:
    driver.add(f"proc {A} pid=100 sm=30", f"proc {A} pid=200 sm=250", f"proc {A} pid=300 kind=graphics mem=none")
    await reader.open()
    # The driver's first figures may be older than the reading.
    assert (await reader.sampled()).work == {A: GpuWork(running=(100, 200, 300), percent={}), B: GpuWork(percent={})}
    assert (await reader.sampled()).work[A].percent == {100: 30.0}, "250 % cannot be"
    driver.only(f"proc {A} pid=100 mem=1500", f"proc {A} pid=100 mem=20 kind=graphics", f"proc {A} pid=200 mem=none")
    assert (await reader.sampled()).work[A].memory_mib == {100: 1500}
    driver.only(f"proc {A} pid=100", "empty nvmlDeviceGetProcessUtilization")
    assert (await reader.sampled()).work[A] == GpuWork(running=(100,), percent={})
    driver.only(f"proc {A} pid=100 sm=1", f"fail nvmlDeviceGetProcessUtilization 3 {A}")
    assert (await reader.sampled()).work[A] == GpuWork(running=(100,), percent=None), "its driver does not report it"
    driver.only(f"fail nvmlDeviceGetComputeRunningProcesses_v3 999 {A}")
    fourth = await reader.sampled()
    assert (len(fourth.gpus), fourth.work.keys()) == (2, {B})


@pytest.mark.parametrize("function", ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization"])
async def test_a_list_that_grows_while_it_is_read_is_read_again(
    driver: FalseDriver, reader: Reader, function: str
) -> None:
    await reader.open()
    driver.add(*(f"proc {A} pid={pid} sm=5" for pid in range(100, 140)))
    await reader.sampled()
    driver.add(f"race {function} 2")
    assert len((await reader.sampled()).work[A].running) == 40
    driver.lines[-1] = f"race {function} 1000"
    driver.write()
    assert A not in (await reader.sampled()).work, "unknown, not none"


async def test_slices_are_gpus_of_their_own(driver: FalseDriver, reader: Reader) -> None:
    cut_into_slices(driver)
    driver.add(f"proc {SLICES[1]} pid=77")
    await reader.open()
    reading = await reader.sampled()
    gpus = {gpu.uuid: gpu for gpu in reading.gpus}
    assert list(gpus) == [A, *SLICES[:2], B]
    assert (gpus[A].mig_mode, gpus[A].parent) == (True, None)
    one = gpus[SLICES[1]]
    assert (one.parent, one.mig_mode, one.index, one.memory_mib, one.used_mib) == (A, False, 0, 20096, 100)
    assert (one.model, one.health, one.utilization) == ("NVIDIA A100 MIG 20gb", "ok", None)
    assert one.details is not None
    assert (one.details.gpu_instance, one.details.compute_instance) == (2, 0)
    assert reading.work[SLICES[1]] == GpuWork(running=(77,), percent=None)
    del driver.slices[SLICES[0]]
    driver.write()
    assert list(await reader.by_uuid(1)) == [A, SLICES[1], B], "its operator removed it"
