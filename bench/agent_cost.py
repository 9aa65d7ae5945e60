"""The cost of an idle agent on a host with 8 GPUs at default periods: memory and processor time, with its NVML child.

Usage: python agent_cost.py [SECONDS]

The GPUs are those of the false driver library, which reads its file at each call. The cost of a real library differs,
so the child's processor time is shown apart. Exits with 1 where a limit is exceeded.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from schemas.wire import HEARTBEAT_S, SAMPLE_S
from support.nvml.false_driver import FalseDriver
from support.standins.controller import TOKEN, ControllerDouble, controller_double

GPUS = 8
AGENT_MIB, BOTH_MIB, CORE_PERCENT = 85, 125, 1.0
WARM_S = 20.0  # until all fields were read and the first periods are closed
MIB = 2**20


async def main(seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="gpuward-agent-cost-") as folder:
        async with controller_double() as controller:
            controller.heartbeat_s, controller.sample_s = HEARTBEAT_S, SAMPLE_S
            return await measured(controller, Path(folder), seconds)


async def measured(controller: ControllerDouble, folder: Path, seconds: float) -> int:
    driver = FalseDriver(folder, GPUS)
    argv = ["agent", "--controller", controller.url, "--join-token", TOKEN, "--data-dir", str(folder / "data")]
    env = {k: v for k, v in os.environ.items() if not k.startswith("GPUWARD_")} | driver.env
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    quiet = subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "cli", *argv, env=env, stdout=quiet, stderr=quiet
    )
    try:
        await asyncio.sleep(WARM_S)
        agent = psutil.Process(process.pid)
        (child,) = [process for process in agent.children() if "agent.gpus.nvml" in process.cmdline()]
        began, before = time.monotonic(), (used_s(agent), used_s(child))
        await asyncio.sleep(seconds)
        elapsed_s, after = time.monotonic() - began, (used_s(agent), used_s(child))
        memory = agent.memory_info().rss / MIB, child.memory_info().rss / MIB
        shares = [100 * (b - a) / elapsed_s for a, b in zip(before, after, strict=True)]
    finally:
        process.terminate()
        await process.wait()
    assert controller.heartbeats, "the agent never connected"
    print(f"memory: agent {memory[0]:.1f} MiB (limit {AGENT_MIB}), with its child {sum(memory):.1f} (limit {BOTH_MIB})")
    print(f"a core: agent {shares[0]:.2f} % (limit {CORE_PERCENT:g} %), child over the false library {shares[1]:.2f} %")
    print(f"in {elapsed_s:.0f} s: {GPUS} GPUs, a heartbeat each {HEARTBEAT_S:g} s, a sample each {SAMPLE_S:g} s")
    return int(memory[0] > AGENT_MIB or sum(memory) > BOTH_MIB or shares[0] > CORE_PERCENT)


def used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    sys.exit(asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)))
