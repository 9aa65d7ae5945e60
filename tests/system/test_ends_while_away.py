"""Tasks end while their agents are replaced: the result counts under each restart policy, also of gangs."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.processes.cluster import STOP_S, Cluster

HOSTS = ("g1", "g2")
KEEP = {"GPUWARD_AGENT_ON_EXIT": "keep"}
GANG = {"gpus": 2, "gpu_memory": "4GiB", "max_workers": 2}
RUNS_S = 12


def _leave(cluster: Cluster, host: str) -> None:
    process = cluster.processes.pop(host)
    process.terminate()
    assert process.wait(STOP_S) == 0, cluster.log(host)


def _kill(cluster: Cluster, host: str) -> None:
    cluster.kill(host)


# Policy, how each run ends, and the phase afterwards; None: it is started again.
ENDS: dict[str, tuple[str, int, str | None]] = {
    "never-0": ("never", 0, "succeeded"),
    "never-3": ("never", 3, "failed"),
    "never-kill": ("never", -9, "failed"),
    "failure-0": ("on_failure", 0, "succeeded"),
    "failure-3": ("on_failure", 3, None),
    "always-0": ("always", 0, None),
    "gang-never-0": ("never", 0, "succeeded"),
    "gang-never-3": ("never", 3, "failed"),
    "gang-failure-0": ("on_failure", 0, "succeeded"),
    "gang-failure-3": ("on_failure", 3, None),
}


def _spec(name: str, restart: str, code: int) -> dict[str, Any]:
    if name.startswith("gang"):
        args = {"memory": "4GiB", "exit_after": RUNS_S, "exit_code": code}
        return {"restart": restart, "args": args, "resources": GANG}
    end = f"kill {code} $$" if code < 0 else f"exit {code}"
    command = ["bash", "-c", f"sleep {RUNS_S}; {end}"]
    return {"engine": "custom", "restart": restart, "command": command, "resources": {"gpus": 1, "gpu_memory": "4GiB"}}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("leave", [_leave, _kill])
async def test_the_result_counts_however_the_agents_were_away(
    leave: Callable[[Cluster, str], None], cluster: Cluster
) -> None:
    await cluster.start_controller(GPUWARD_RESTART_BACKOFF_S="0.2")
    for host in HOSTS:
        await cluster.start_agent(host, gpus=1, memory="200GiB", **KEEP)
    for name, (restart, code, _) in ENDS.items():
        await cluster.apply(name, **_spec(name, restart, code))
    for name in ENDS:
        await cluster.running(name)
    pids = {engine.pid for engine in cluster.engines().values()}
    for host in HOSTS:
        leave(cluster, host)
    before = {name: (await cluster.instances(name))[0]["status"] for name in ENDS}
    assert {status["phase"] for status in before.values()} <= {"running", "unreachable"}, "all ends come while away"
    await cluster.until(lambda: not pids & {e.pid for e in cluster.engines().values()}, "all have ended", 30)
    for host in HOSTS:
        await cluster.start_agent(host, gpus=1, memory="200GiB")

    for name, (_, code, phase) in ENDS.items():
        await cluster.until(lambda name=name: _settled(cluster, name), f"{name} has ended", 30)
        (instance,) = await cluster.instances(name)
        status = instance["status"]
        assert "exit code unknown" not in str(status), name
        assert status["epoch"] == before[name]["epoch"] or phase is None, name
        if phase is not None:
            assert status["phase"] == phase, name
        if phase == "failed":
            assert ("killed by signal 9" if code < 0 else "exited with code 3") in status["message"], name
    await asyncio.sleep(1.0)
    again = {e.environ()["GPUWARD_INSTANCE"].rpartition("-")[0] for e in cluster.engines().values()}
    assert again <= {name for name, (_, _, phase) in ENDS.items() if phase is None}, "a task that is done runs once"
    await cluster.audit()


async def _settled(cluster: Cluster, name: str) -> bool:
    """Whether its first run was judged: it is over, or there is a second one."""
    (instance,) = await cluster.instances(name)
    return instance["status"]["phase"] in ("succeeded", "failed") or instance["status"]["restarts"] > 0
