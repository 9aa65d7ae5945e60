"""What `gpuward doctor` makes of the facts of a host."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from agent.decide.doctor.controller import ControllerProbe, judge_clock, judge_controller
from agent.decide.doctor.finding import Finding
from agent.decide.doctor.gpus import (
    DockerProbe,
    DriverProbe,
    NvmlProbe,
    judge_containers,
    judge_driver,
    judge_gpus,
    judge_nvml,
)
from agent.decide.doctor.host import (
    MODELS,
    AgentProbe,
    CgroupProbe,
    DiskProbe,
    EnginePorts,
    EngineProbe,
    EnvironmentProbe,
    IsolationProbe,
    LimitProbe,
    PortProbe,
    judge_agent,
    judge_cgroups,
    judge_disk,
    judge_engine_ports,
    judge_engines,
    judge_environment,
    judge_isolation,
    judge_limits,
    judge_port,
)
from agent.decide.unreachable import unreachable
from agent.doctor import doctor
from agent.tasks import in_background
from schemas.wire import SPOKEN, GpuDetails, ReportedGpu

GIB = 2**30


def gpu(index: int = 0, **fields: object) -> ReportedGpu:
    return msgspec.convert(
        {"uuid": f"GPU-{index}", "index": index, "model": "H100", "memory_mib": 81559, **fields}, ReportedGpu
    )


ONE = NvmlProbe("580.95.05", (gpu(),))
BROKEN = NvmlProbe(error="nvml_failed: NVML Shared Library Not Found")


def check(finding: Finding | Iterable[Finding], *expected: tuple[str, str]) -> None:
    """Each finding has this status and holds these words; what is not ok says what to do."""
    found = [finding] if isinstance(finding, Finding) else list(finding)
    assert len(found) == len(expected), found
    for one, (status, words) in zip(found, expected, strict=True):
        assert one.status == status, one
        assert words in f"{one.message} | {one.remedy}", one
        assert bool(one.remedy) == (one.status != "ok"), one
        assert one.check in doctor.ORDER


@pytest.mark.parametrize(("driver", "nvml", "status", "words"), [
    (DriverProbe("580.95.05", 1, 1), ONE, "ok", "580.95.05"),
    (DriverProbe(), ONE, "ok", "580.95.05"),  # a container hides the module
    (DriverProbe("570.1", 1, 1), ONE, "fails", "kernel has driver 570.1, but its library is of 580.95.05"),
    (DriverProbe(None, 0), BROKEN, "fails", "no NVIDIA GPU was found"),
    (DriverProbe(None, None), BROKEN, "fails", "no NVIDIA driver was found"),
    (DriverProbe(None, 8), BROKEN, "fails", "modprobe nvidia"),
    (DriverProbe("580.1", 8, 0), BROKEN, "fails", "nvidia-modprobe"),
    (DriverProbe("580.1", 1, 1, ("/dev/nvidia0",), "user me"), BROKEN, "fails", "user me may not open /dev/nvidia0"),
    (DriverProbe("580.1", 1, 1), BROKEN, "ok", "580.1"),
    (DriverProbe("580.1", 1, 0, ("/dev/a", "/dev/b", "/dev/c", "/dev/d"), "me"), BROKEN, "fails",
     "me may not open /dev/a, /dev/b, /dev/c |"),
    (DriverProbe("580.1", 1, 1), NvmlProbe(), "ok", "580.1"),
    (DriverProbe(None, 1), NvmlProbe("580.1", error="x: y"), "fails", "1 NVIDIA GPU on the PCI bus"),
])  # fmt: skip
def test_driver(driver: DriverProbe, nvml: NvmlProbe, status: str, words: str) -> None:
    check(judge_driver(driver, nvml), (status, words))


@pytest.mark.parametrize(("driver", "nvml", "status", "words"), [
    (DriverProbe("1.2", 1, 1), ONE, "ok", "lists 1 GPU"),
    (DriverProbe("1.2", 2, 2), ONE, "warning", "2 are on the PCI bus"),
    (DriverProbe("1.2", 1, 1), NvmlProbe("1.2", (gpu(mig_mode=True), gpu(parent="GPU-0"))), "ok", "and 1 MIG slice"),
    (DriverProbe("1.2", 1, 1), NvmlProbe("1.2"), "fails", "lists no GPU"),
    (DriverProbe("1.2", 2, 2), NvmlProbe("1.2", (gpu(), gpu(1, parent="GPU-0"))), "warning", "lists 1 GPU and 1 MIG"),
    (DriverProbe("1.2", None, 1), ONE, "ok", "lists 1 GPU | "),
    (DriverProbe("1.2", 0, 1), ONE, "ok", "lists 1 GPU | "),
    (DriverProbe(None, 1), BROKEN, "fails", "Install the library libnvidia-ml"),
    (DriverProbe("1.2", 1, 1), BROKEN, "fails", "Install the library libnvidia-ml"),
    (DriverProbe(None, 0), BROKEN, "fails", "--simulate"),
    (DriverProbe("1.2", 1, 1), NvmlProbe(error="nvml_hang: a call"), "fails", "restart the host"),
    (DriverProbe("1.2", 1, 1), NvmlProbe(error="driver_mismatch: x"), "fails", "kernel modules"),
    (DriverProbe("1.2", 1, 1), NvmlProbe(error="nvml_crashed: x"), "fails", "install the driver again"),
    (DriverProbe("1.2", 1, 1), NvmlProbe(error="nvml_library_missing: x"), "fails", "pip install 'gpuward[agent]'"),
    (DriverProbe(None, 0), NvmlProbe(error="nvml_library_missing: x"), "fails", "pip install 'gpuward[agent]'"),
])  # fmt: skip
def test_nvml(driver: DriverProbe, nvml: NvmlProbe, status: str, words: str) -> None:
    check(judge_nvml(driver, nvml), (status, words))


@pytest.mark.parametrize(("gpus", "expected"), [
    ((gpu(0), gpu(1)), [("ok", "2 GPUs well: H100")]),
    ((gpu(0, health="unhealthy", health_reason="gpu_lost: GPU is lost"), gpu(1)),
     [("fails", "GPU 0 (GPU-0, H100): gpu_lost"), ("ok", "1 GPU well")]),
    ((gpu(0, health="unhealthy", health_reason="xid_79: x"),), [("fails", "reset the GPU")]),
    ((gpu(0, health="unknown", health_reason="gpu_unreadable: x"),), [("warning", "gpu_unreadable")]),
    ((gpu(0, mig_mode=True),), [("warning", "no slices")]),
    ((gpu(0, mig_mode=True), gpu(1, parent="GPU-0")), [("ok", "2 GPUs well")]),
    ((gpu(0, details=GpuDetails(persistence=False)), gpu(1, details=GpuDetails(persistence=True))),
     [("ok", "2 GPUs well"), ("warning", "persistence mode is off (GPU 0)")]),
])  # fmt: skip
def test_gpus(gpus: tuple[ReportedGpu, ...], expected: list[tuple[str, str]]) -> None:
    check(judge_gpus(NvmlProbe("1.2", gpus)), *expected)


@pytest.mark.parametrize(("docker", "nvml", "status", "words"), [
    (DockerProbe(), ONE, "ok", "no Docker engine"),
    (DockerProbe("denied"), ONE, "warning", "group docker"),
    (DockerProbe("silent", error="nothing within 4 s"), ONE, "warning", "nothing within 4 s"),
    (DockerProbe("running", "28.2", toolkit="1.17.8"), ONE, "ok", "toolkit 1.17.8"),
    (DockerProbe("running", "28.2", runtimes=("nvidia", "runc")), ONE, "ok", "NVIDIA's runtime"),
    (DockerProbe("running", "28.2", cdi=("nvidia.com/gpu=0",)), ONE, "ok", "NVIDIA's runtime"),
    (DockerProbe("running", "28.2", runtimes=("runc",)), ONE, "warning", "nvidia-ctk runtime configure"),
    (DockerProbe("running", "28.2", runtimes=("runc",)), BROKEN, "ok", "Docker 28.2"),
])  # fmt: skip
def test_containers(docker: DockerProbe, nvml: NvmlProbe, status: str, words: str) -> None:
    check(judge_containers(docker, nvml), (status, words))


@pytest.mark.parametrize(("facts", "status", "words"), [
    (CgroupProbe(unified=True, controllers=frozenset({"memory", "pids", "cpu"})), "ok", "limits of memory"),
    (CgroupProbe(unified=True, controllers=frozenset({"memory", "pids"}), delegated=True), "ok", "limits of memory"),
    (CgroupProbe(unified=True, controllers=frozenset({"memory", "pids"}), delegated=False), "warning", "systemd unit"),
    (CgroupProbe(unified=True, controllers=frozenset({"pids"})), "warning", "lacks memory"),
    (CgroupProbe(unified=False), "warning", "no cgroup v2"),
])  # fmt: skip
def test_cgroups(facts: CgroupProbe, status: str, words: str) -> None:
    check(judge_cgroups(facts), (status, words))


RUNS = AgentProbe("/data", pid=7, worker="gpu-1", port=9000, connected=True)


@pytest.mark.parametrize(("agent", "status", "words"), [
    (AgentProbe("/data"), "ok", "no agent runs on /data (it has not joined yet)"),
    (AgentProbe("/data", worker="gpu-1"), "ok", "no agent runs on /data (worker gpu-1)"),
    (AgentProbe("/data", readable=False), "warning", "as the agent's user"),
    (RUNS, "ok", "pid 7, worker gpu-1), connected"),
    (AgentProbe("/data", pid=7, connected=False), "warning", "not connected"),
])  # fmt: skip
def test_agent(agent: AgentProbe, status: str, words: str) -> None:
    check(judge_agent(agent), (status, words))
    assert (", connected" in judge_agent(agent).message) == (agent.connected is True)
    unknown = judge_agent(AgentProbe("/data", pid=7))
    assert (unknown.status, ", connected" in unknown.message) == ("ok", False)


@pytest.mark.parametrize(("facts", "status", "words"), [
    (EnvironmentProbe((), running=True), "ok", "engines get all of the running agent's variables"),
    (EnvironmentProbe((), running=False), "ok", "engines get all of the variables here"),
    (EnvironmentProbe(("A", "B"), running=False), "ok", "of the variables here, engines do not get A, B; list"),
    (EnvironmentProbe(("A",), running=True), "ok", "of the running agent's variables, engines do not get A; list"),
    (EnvironmentProbe((), running=True, readable=False), "warning", "as the agent's user"),
])  # fmt: skip
def test_environment(facts: EnvironmentProbe, status: str, words: str) -> None:
    check(judge_environment(facts), (status, words))


@pytest.mark.parametrize(("port", "agent", "status", "words"), [
    (PortProbe(0), AgentProbe("/data"), "ok", "any free port"),
    (PortProbe(9000), AgentProbe("/data"), "ok", "free"),
    (PortProbe(9000, listening=True, is_agent=True), RUNS, "ok", "the agent's"),
    (PortProbe(9000, listening=True), RUNS, "ok", "the agent's"),  # it is too busy to answer
    (PortProbe(9000, listening=True, is_agent=True), AgentProbe("/d", readable=False), "ok", "the agent's"),
    (PortProbe(9000, listening=True, is_agent=True), AgentProbe("/d"), "fails", "an agent with another data folder"),
    (PortProbe(9000, listening=True, by="nginx (pid 3)"), AgentProbe("/d"), "fails", "nginx (pid 3)"),
    (PortProbe(9000, listening=True), AgentProbe("/d"), "fails", "another process"),
    (PortProbe(9000, listening=True), AgentProbe("/d", port=9000), "fails", "another process"),  # of its last start
    (PortProbe(9001, listening=True), RUNS, "fails", "another process"),
    (PortProbe(9001, listening=True, is_agent=True), RUNS, "ok", "the agent's"),
    (PortProbe(9001, listening=True), AgentProbe("/d", readable=False), "fails", "another process"),
    (PortProbe(9000, is_agent=True), AgentProbe("/d"), "ok", "free"),
    (PortProbe(80, error="Permission denied"), AgentProbe("/d"), "fails", "Permission denied"),
])  # fmt: skip
def test_port(port: PortProbe, agent: AgentProbe, status: str, words: str) -> None:
    check(judge_port(port, agent), (status, words))


@pytest.mark.parametrize(("ports", "status", "words"), [
    (EnginePorts(18_000, 31_999, 3, 32_768), "ok", "3 are in use"),
    (EnginePorts(18_000, 31_999, 3, None), "ok", "3 are in use"),
    (EnginePorts(18_000, 31_999, 3, 20_000), "warning", "ip_local_port_range"),
    (EnginePorts(18_000, 31_999, 9_000, 32_768), "warning", "9000 of the 14000"),
    (EnginePorts(18_000, 31_999, 7_001, 32_768), "warning", "7001 of the 14000"),
    (EnginePorts(18_000, 31_999, 7_000, 32_768), "ok", "7000 are in use"),
    (EnginePorts(18_000, 31_999, 0, 32_000), "ok", "0 are in use"),
    (EnginePorts(18_000, 31_999, 0, 31_999), "warning", "begin at 31999"),
])  # fmt: skip
def test_ports_of_engines(ports: EnginePorts, status: str, words: str) -> None:
    check(judge_engine_ports(ports), (status, words))


@pytest.mark.parametrize(("disk", "status", "words"), [
    (DiskProbe("data", "/d", 500 * GIB, 0.9), "ok", "500.0 GiB free"),
    (DiskProbe("data", "/d", 500 * GIB, None), "ok", "500.0 GiB free"),
    (DiskProbe("data", "/d", 20 * GIB, 0.9), "ok", "20.0 GiB free"),
    (DiskProbe(MODELS, "/d", 20 * GIB, 0.9), "warning", "--cache-dir"),
    (DiskProbe("data", "/d", GIB // 2, 0.9), "fails", "0.5 GiB free"),
    (DiskProbe("data", "/d", GIB - 1, 0.9), "fails", "1.0 GiB free"),
    (DiskProbe("data", "/d", GIB, 0.9), "ok", "1.0 GiB free"),
    (DiskProbe(MODELS, "/d", 50 * GIB - 1, 0.9), "warning", "50.0 GiB free"),
    (DiskProbe(MODELS, "/d", 50 * GIB, 0.9), "ok", "50.0 GiB free"),
    (DiskProbe("data", "/d", 500 * GIB, 0.01), "ok", "500.0 GiB free"),
    (DiskProbe("data", "/d", 500 * GIB, 0.001), "fails", "inodes"),
    (DiskProbe("data", "/d", 500 * GIB, 0.9, writable=False), "fails", "not writable"),
])  # fmt: skip
def test_disk(disk: DiskProbe, status: str, words: str) -> None:
    check(judge_disk(disk), (status, words))


@pytest.mark.parametrize(("limits", "expected"), [
    (LimitProbe(65_536, 64 * GIB, 8), [("ok", "65536")]),
    (LimitProbe(1_024, 64 * GIB, 8), [("warning", "LimitNOFILE")]),
    (LimitProbe(4_095, GIB, 8), [("warning", "LimitNOFILE")]),
    (LimitProbe(4_096, GIB, 8), [("ok", "4096")]),
    (LimitProbe(4_096, GIB - 1, 8), [("ok", "4096"), ("warning", "1.0 GiB")]),
    (LimitProbe(65_536, 64 * 2**20, 2), [("ok", "65536"), ("warning", "0.1 GiB")]),
    (LimitProbe(65_536, None, 2), [("ok", "65536"), ("warning", "is missing")]),
    (LimitProbe(65_536, 64 * 2**20, 1), [("ok", "65536")]),
])  # fmt: skip
def test_limits(limits: LimitProbe, expected: list[tuple[str, str]]) -> None:
    check(judge_limits(limits), *expected)


def test_engines() -> None:
    check(judge_engines([]), ("warning", "no model server"))
    on_cpu = EngineProbe("llama-cpp", "/l", "7", on_cpu=True)
    broken = EngineProbe("sglang", "/bin/sglang", error="it exits with code 1")
    check(
        judge_engines([EngineProbe("vllm", "/bin/vllm", "0.33.0"), broken, on_cpu]),
        ("ok", "vllm 0.33.0 (/bin/vllm)"),
        ("warning", "it exits with code 1"),
        ("warning", "llama-cpp 7 (/l) uses no GPU"),
    )


UP = {"url": "http://c", "status": 200, "ahead_s": 0.0}


@pytest.mark.parametrize(("facts", "expected"), [
    ({"url": None}, [("warning", "no address given")]),
    ({"url": "http://c", "error": unreachable("http://c", OSError("refused"))},
     [("fails", "http://c cannot be reached")]),
    ({**UP, "status": 400}, [("fails", "https://c")]),
    ({**UP, "url": "https://c", "status": 400}, [("fails", "answers 400")]),
    ({"url": "http://c"}, [("fails", "answers 0")]),
    ({**UP, "status": 404}, [("fails", "answers 404")]),
    ({**UP, "credential": "none"}, [("ok", "answers"), ("warning", "join-token create")]),
    ({**UP, "credential": "none", "token": True}, [("ok", "answers"), ("ok", "joins with its token")]),
    ({**UP, "credential": "unread"}, [("ok", "answers"), ("warning", "as the agent's user")]),
    ({**UP, "credential": "refused", "refusal": "deleted"},
     [("ok", "answers"), ("fails", "refuses this worker: deleted")]),
    ({**UP, "refusal": "it answers 503"}, [("ok", "answers"), ("warning", "503")]),
    ({**UP, "credential": "accepted", "protocol": SPOKEN.highest},
     [("ok", "answers"), ("ok", "accepts"), ("ok", "protocol")]),
    ({**UP, "credential": "accepted", "protocol": SPOKEN.lowest},
     [("ok", "answers"), ("ok", "accepts"), ("warning", "older than this agent")]),
    ({**UP, "credential": "accepted"}, [("ok", "answers"), ("ok", "accepts"), ("fails", "speaks none")]),
])  # fmt: skip
def test_controller(facts: dict[str, object], expected: list[tuple[str, str]]) -> None:
    check(judge_controller(ControllerProbe(**facts)), *expected)  # type: ignore[arg-type] # a table's rows


@pytest.mark.parametrize(("ahead_s", "status", "words"), [
    (4.9, "ok", "agrees"), (5.0, "warning", "5 s behind"), (-5.0, "warning", "5 s ahead of"), (0, "ok", "agrees"),
    (299.0, "warning", "299 s"), (300.0, "fails", "300 s behind"), (-300.0, "fails", "300 s ahead of"),
    (0.7, "ok", "agrees"), (-0.7, "ok", "agrees"), (30, "warning", "30 s behind"), (-30, "warning", "30 s ahead of"),
    (4_000, "fails", "chrony"),
])  # fmt: skip
def test_clock(ahead_s: float, status: str, words: str) -> None:
    finding = judge_clock(ControllerProbe("http://c", ahead_s=ahead_s))
    assert finding is not None
    check(finding, (status, words))
    assert judge_clock(ControllerProbe("http://c")) is None


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        (IsolationProbe(root=True), "warning", "run as root"),
        (IsolationProbe(root=False), "warning", "the agent's own user"),
        (IsolationProbe(root=True, engine_user="engines"), "ok", "can read one another"),
        (IsolationProbe(root=True, engine_user="1-9", each=True), "ok", "one of its own"),
        (IsolationProbe(root=True, engine_user="1-9", each=True, stopped_at="/root"), "fails", "may not enter /root"),
        (IsolationProbe(root=False, engine_user="1-9", error="it lacks CAP_KILL"), "fails", "CAP_KILL"),
    ],
)
def test_isolation(facts: IsolationProbe, status: str, words: str) -> None:
    check(judge_isolation(facts), (status, words))


async def test_a_check_that_hangs_or_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def hang() -> list[Finding]:
        await in_background(lambda: os.read(ends[0], 1))
        raise AssertionError

    async def fail(_patient: doctor.Patient) -> list[Finding]:
        raise RuntimeError("odd")

    ends = os.pipe()
    monkeypatch.setattr(doctor, "_QUICK_S", 0.05)
    monkeypatch.setattr(doctor, "_ports", hang)
    monkeypatch.setattr(doctor, "_cgroups", fail)
    simulated = tmp_path / "hosts.yaml"
    simulated.write_text("workers: [{name: a, gpus: [{model: H100, memory: 8GiB, count: 2}]}]")
    async with asyncio.timeout(60):
        found = await doctor.examine(doctor.Patient(tmp_path / "data", tmp_path / "models", simulate=simulated))
    os.write(ends[1], b"x")
    by_check = {finding.check: finding for finding in found}
    check(by_check["ports"], ("fails", "no result within 0.05 s"))
    check(by_check["cgroups"], ("fails", "odd"))
    check(by_check["gpu"], ("ok", "2 simulated GPUs of a"))
