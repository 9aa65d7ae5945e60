"""What the agent's NVML child read becomes a file of the false library, by which the child reads the same again."""

from pathlib import Path

import pytest

from gpu_kit.nvml_reader import NvmlReader, NvmlReaderError, sample_of
from gpu_kit.scenario import scenario
from support.nvml.false_driver import GPUS, SLICES, FalseDriver
from support.nvml.reader import cut_into_slices

A, B = GPUS[:2]


def read(driver: FalseDriver) -> dict[str, object]:
    """A first answer of a new child, which has all fields. Figures of work come with the second one."""
    with NvmlReader(driver.env) as reader:
        answer = reader.sample()
        answer["work"] = reader.sample()["work"]
        return answer


def plain(driver: FalseDriver) -> None:
    driver.set(A, used=1200, util=55, power=312_500, temp=61, throttle=0x4 | 0x40, rows="3,1,1,0", recovery=1)
    driver.set(B, name="NVIDIA_H200", cc="9.0", energy=12_345_000, compute_mode=3, persistence=0, numa=1, mem=143771)


def linked(driver: FalseDriver) -> None:
    driver.set(A, bus="00000000:41:00.0", nvlinks=8, linked="00000000:C1:00.0*6,switch*2")
    driver.set(B, bus="00000000:C1:00.0", nvlinks=0, linked="none")


def faulty(driver: FalseDriver) -> None:
    driver.set(A, util="none", power="!999", rows="none", recovery="none", temp="!4", mem="none", ecc_corrected=7)
    driver.set(B, numa="none", pcie_gen="!7", throttle="!3", name="!999")


def lost(driver: FalseDriver) -> None:
    driver.add(f"fail * 15 {A}")


def working(driver: FalseDriver) -> None:
    driver.add(f"proc {A} pid=41 mem=500 sm=40", f"proc {A} pid=42 mem=none", f"proc {B} pid=43 mem=7 sm=3")


def sliced(driver: FalseDriver) -> None:
    cut_into_slices(driver)
    driver.add(f"proc {SLICES[0]} pid=44 mem=300")


def newer(driver: FalseDriver) -> None:
    """A recovery and a compute mode that this version has no name for."""
    driver.set(A, recovery=42, compute_mode=9, mig=0)


@pytest.mark.parametrize("world", [plain, linked, faulty, lost, working, sliced, newer])
def test_readings_come_back_as_they_were(world: object, tmp_path: Path) -> None:
    driver = FalseDriver(tmp_path)
    world(driver)  # type: ignore[operator]  # a function of the table above
    before = read(driver)
    (tmp_path / "false-nvml").write_text(scenario(before))
    assert read(driver) == before


def test_a_sample_has_what_one_gpu_and_its_processes_use(tmp_path: Path) -> None:
    driver = FalseDriver(tmp_path)
    driver.set(A, used=1200, util=55)
    working(driver)
    sample = sample_of(read(driver), A, 3.0)
    assert (sample.at_s, sample.used_mib, sample.percent) == (3.0, 1200, 55)
    assert (dict(sample.memory_mib), dict(sample.percents)) == ({41: 500, 42: None}, {41: 40.0})


def test_a_driver_that_is_not_loaded_or_hangs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FalseDriver(tmp_path)
    driver.change_driver(None)
    with pytest.raises(NvmlReaderError, match="NVML fails"):
        read(driver)
    driver.change_driver("580.95.05")
    driver.add("hang nvmlDeviceGetMemoryInfo 30")
    monkeypatch.setattr("gpu_kit.nvml_reader.FIRST_LIMIT_S", 1.0)
    with pytest.raises(NvmlReaderError, match="did not answer"):
        read(driver)
