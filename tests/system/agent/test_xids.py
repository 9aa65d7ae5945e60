"""The driver's error events (Xids), and how long a GPU stays condemned."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.gpus.verdicts import Verdicts
from agent.state.journal import Journal
from support.nvml.false_driver import GPUS, SLICES, FalseDriver
from support.nvml.reader import A, B, Reader, cut_into_slices, living_readers


async def test_events_that_applications_cause_condemn_no_gpu(driver: FalseDriver, reader: Reader) -> None:
    await reader.watching(driver)
    for code in (13, 31, 43, 45, 45):
        driver.xid(A, code)
    gpu = await reader.seen(A, 45, times=2)
    assert (gpu.health, gpu.details and gpu.details.xids) == ("ok", {"13": 1, "31": 1, "43": 1, "45": 2})


async def test_grave_events_condemn_a_gpu_each_with_its_reason(driver: FalseDriver, reader: Reader) -> None:
    codes = dict(zip(GPUS[2:], (48, 79, 94, 95, 119, 120), strict=True))
    driver.gpus |= {uuid: {} for uuid in codes}
    driver.write()
    await reader.watching(driver)
    for uuid, code in codes.items():
        driver.xid(uuid, code)
    await reader.seen(GPUS[7], 120)
    found = await reader.by_uuid()
    reasons = {uuid: (found[uuid].health, found[uuid].health_reason.split(":")[0]) for uuid in codes}
    assert reasons == {uuid: ("unhealthy", f"xid_{code}") for uuid, code in codes.items()}
    assert len({found[uuid].health_reason for uuid in codes}) == len(codes)
    assert (found[A].health, found[B].health) == ("ok", "ok")


async def test_no_event_of_a_gpu_is_lost_while_others_come_and_go(driver: FalseDriver, reader: Reader) -> None:
    await reader.watching(driver)
    told = 40
    for n in range(told):
        if n % 2:
            driver.gpus.pop(GPUS[2])
        else:
            driver.gpus[GPUS[2]] = {}
        driver.xid(A, 13)
        await reader.read()
        await asyncio.sleep(0.01 * (n % 7))
    gpu = await reader.seen(A, 13, times=told)
    assert gpu.health == "ok"


async def test_a_storm_of_an_applications_events_hides_no_grave_one(driver: FalseDriver, reader: Reader) -> None:
    await reader.watching(driver)
    storm = [f"xid {1000 + n} {A} {13 if n % 2 else 31}" for n in range(600)]
    storm[300] = f"xid 1300 {B} 79"
    driver.add(*storm)
    await reader.seen(A, 13, times=300)
    found = await reader.by_uuid()
    assert (found[A].health, found[B].health) == ("ok", "unhealthy")
    assert found[B].health_reason.startswith("xid_79")
    (child,) = living_readers()
    assert child.memory_info().rss < 200 * 2**20


async def test_an_event_reaches_the_next_child_too(driver: FalseDriver, reader: Reader) -> None:
    await reader.watching(driver)
    driver.xid(A, 48)
    await reader.seen(A, 48)
    (child,) = living_readers()
    child.kill()
    assert await reader.read() is None
    assert (await reader.by_uuid(60))[A].health_reason.startswith("xid_48")


async def test_an_event_of_one_slice_condemns_that_slice(driver: FalseDriver, reader: Reader) -> None:
    cut_into_slices(driver)
    await reader.watching(driver)
    driver.xid(A, 94, gpu_instance=2)
    await reader.seen(A, 94)
    health = {uuid: gpu.health for uuid, gpu in (await reader.by_uuid()).items()}
    assert health == {A: "ok", SLICES[0]: "ok", SLICES[1]: "unhealthy", B: "ok"}


def _nothing(_driver: FalseDriver, _verdicts: Verdicts) -> None: ...


def _reset(driver: FalseDriver, _verdicts: Verdicts) -> None:
    driver.set(A, energy=10)


@pytest.mark.parametrize(("boot_id", "meanwhile", "health"), [
    ("this boot", _nothing, "unhealthy"), ("the next boot", _nothing, "ok"), ("this boot", _reset, "ok"),
])  # fmt: skip
async def test_a_verdict_outlives_the_agent_until_a_boot_or_a_reset(
    driver: FalseDriver,
    tmp_path: Path,
    boot_id: str,
    meanwhile: Callable[[FalseDriver, Verdicts], None],
    health: str,
) -> None:
    driver.set(A, energy=7000)
    journal = Journal(tmp_path / "data")
    first = Reader(verdicts=Verdicts(journal, "this boot"))
    await first.watching(driver)
    driver.xid(A, 48)
    told = (await first.seen(A, 48)).health_reason
    await first.aclose()
    journal.close()
    driver.only()
    journal = Journal(tmp_path / "data")
    verdicts = Verdicts(journal, boot_id)
    meanwhile(driver, verdicts)
    second = Reader(verdicts=verdicts)
    await second.open()
    gpu = (await second.by_uuid())[A]
    assert (gpu.health, gpu.health_reason) == (health, told if health == "unhealthy" else "")
    await second.aclose()
    journal.close()


async def test_an_operator_dismisses_a_verdict_once(driver: FalseDriver, tmp_path: Path) -> None:
    cut_into_slices(driver)
    journal = Journal(tmp_path / "data")
    reader = Reader(verdicts=Verdicts(journal, "this boot"))
    await reader.watching(driver)
    driver.xid(A, 48)
    await reader.seen(A, 48)
    assert {uuid for uuid, gpu in (await reader.by_uuid()).items() if gpu.health != "ok"} == {A, *SLICES[:2]}
    reader.dismiss({B: 1})
    assert (await reader.by_uuid())[A].health == "unhealthy", "another GPU was meant"
    reader.dismiss({A: 1, B: 1})
    assert {gpu.health for gpu in await reader.after(1)} == {"ok"}
    assert journal.host_state.condemned == {}
    driver.xid(A, 79)
    await reader.seen(A, 79)
    reader.dismiss({A: 1, B: 1})
    assert (await reader.by_uuid())[A].health_reason.startswith("xid_79"), "it came after the operator's word"
    await reader.aclose()
    journal.close()
