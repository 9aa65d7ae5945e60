from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.errors import AgentError
from agent.gpus.reader import GpuWork
from agent.gpus.simulated import SimulatedReader, gpu_uuid, load_host, utilization_at
from agent.state.process_records import ProcessRecord
from schemas.wire import SimulatedLoad
from support.standins.controller import start_order

HOSTS = """
workers:
  - {name: big, count: 2, gpus: [{model: A, memory: 80GiB, count: 2}, {model: B, memory: 40GiB}]}
  - {name: small, gpus: [{model: C, memory: 1000MiB}]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yaml"
    path.write_text(HOSTS)
    return path


def _record(uuid: str, load: SimulatedLoad | None, ready_s: float | None, memory_mib: int = 600) -> ProcessRecord:
    order = start_order("run", gpus=(uuid,), memory_mib=memory_mib, simulated_load=load)
    return ProcessRecord(
        instance="i", epoch=1, rank=0, state="running", boot_id="b", order=order, ready_s=ready_s, ready=True
    )


async def test_the_files_gpus_have_stable_uuids(file: Path) -> None:
    reader = SimulatedReader(load_host(file, "big-1"), lambda: (), lambda: 0.0)
    gpus = await reader.read()
    assert gpus is not None
    assert [(gpu.index, gpu.model, gpu.memory_mib) for gpu in gpus] == [
        (0, "A", 81920),
        (1, "A", 81920),
        (2, "B", 40960),
    ]
    assert [gpu.uuid for gpu in gpus] == [gpu_uuid("big-1", index) for index in range(3)]
    assert len({gpu_uuid(name, 0) for name in ("big-0", "big-1", "small")}) == 3
    assert gpu_uuid("small", 0) == "GPU-90ef66ef-c1ab-5d64-b1e8-06aedaf4bfd7"
    assert await reader.driver() == "580.95"


@pytest.mark.parametrize(("name", "message"), [("big", "big-0, big-1, small"), (None, "--name"), ("unknown", "big-0")])
def test_an_unknown_host_is_an_error(file: Path, name: str | None, message: str) -> None:
    with pytest.raises(AgentError, match=message):
        load_host(file, name)


def test_an_invalid_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="no-such"):
        load_host(tmp_path / "no-such", None)
    broken = tmp_path / "broken.yaml"
    broken.write_text("workers: [{name: a, gpus: [{model: A, memory: lots}]}]")
    with pytest.raises(AgentError, match="memory"):
        load_host(broken, None)


@pytest.mark.parametrize(("since_s", "percent"), [(0, 80), (9.9, 80), (10, 0), (29, 0), (30, 50), (1e6, 50)])
def test_utilization_follows_the_steps(since_s: float, percent: float) -> None:
    assert utilization_at(SimulatedLoad(utilization=((10, 80), (20, 0), (5, 50))), since_s) == percent


async def test_load_is_summed_and_capped(file: Path) -> None:
    uuid, busy = gpu_uuid("small", 0), SimulatedLoad(utilization=((1, 70),))
    records = [_record(uuid, busy, 1.0), _record(uuid, busy, 1.0), _record(uuid, busy, None)]
    reader = SimulatedReader(load_host(file, "small"), lambda: records, lambda: 100.0)
    (gpu,) = await reader.read() or ()
    assert (gpu.utilization, gpu.used_mib) == (100.0, 1000)
    records[:] = [_record(uuid, SimulatedLoad(utilization=((1, 7),), memory_mib=50), 1.0)]
    (gpu,) = await reader.read() or ()
    assert (gpu.utilization, gpu.used_mib) == (7.0, 50)


async def test_utilization_is_reported_by_pid(file: Path) -> None:
    uuid = gpu_uuid("small", 0)
    loads = {11: SimulatedLoad(utilization=((1, 70),)), 12: SimulatedLoad(utilization=((1, 0),)), 13: None}
    records = [replace(_record(uuid, load, 1.0), pid=pid) for pid, load in loads.items()]
    reading = await SimulatedReader(load_host(file, "small"), lambda: records, lambda: 100.0).sample()
    assert reading is not None
    assert reading.gpus[0].utilization == 70.0
    assert reading.work == {uuid: GpuWork(running=(11, 12, 13), percent={11: 70.0, 12: 0.0, 13: 0.0})}


async def test_readings_end_with_the_telemetry(file: Path) -> None:
    now_s = 50.0
    host = load_host(file, "small").model_copy(update={"telemetry_seconds": 30.0})
    reader = SimulatedReader(host, lambda: (), lambda: now_s)
    assert await reader.read() is not None
    now_s = 80.0
    assert await reader.read() is None
    assert await reader.sample() is None
