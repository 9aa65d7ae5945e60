"""Starts one engine: its argv, its environment, its log, in a session of its own. Outlives the agent."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from agent.engines import search_path
from agent.errors import SpawnError
from agent.processes.procfs import MARK_DIR, MARK_EPOCH, MARK_INSTANCE, MARK_RANK
from agent.records import Key
from schemas.wire import StartOrder

# -P: the engine's folder is not searched for our modules. Controllers before 0.2 named the module themselves.
_SIMULATED_ENGINE: Final = (sys.executable, "-P", "-m", "agent.simulated_engine")
_SIMULATED_ENGINE_NAMES: Final = (("{simulated_engine}",), ("{python}", "-m", "gpuward.agent.simulated_engine"))


def engine_argv(order: StartOrder, port: int | None) -> list[str]:
    """The order's argv with {port}, {python} and {simulated_engine} filled in; other braces are the engine's own."""
    values = {"{python}": sys.executable}
    if port is not None:
        values["{port}"] = str(port)
    parts = order.argv
    for names in _SIMULATED_ENGINE_NAMES:
        if parts[: len(names)] == names:
            parts = (*_SIMULATED_ENGINE, *parts[len(names) :])
    argv = []
    for part in parts:
        text = part
        for placeholder, value in values.items():
            text = text.replace(placeholder, value)
        argv.append(text)
    return argv


def engine_env(
    base: Mapping[str, str],
    order: StartOrder,
    key: Key,
    *,
    port: int | None,
    data_dir: Path,
    gpu_index: Callable[[str], int | None] = lambda _uuid: None,
) -> dict[str, str]:
    """The engine's environment: the agent's without what is Gpuward's own (secrets too), the order's, our markers.

    `gpu_index` tells the number that a GPU has on this host now, for engines that know none by its UUID.
    """
    env = {name: value for name, value in base.items() if not name.startswith("GPUWARD_")}
    if "PYTHONPATH" in env:  # relative folders in it are meant from here, not from the engine's folder
        env["PYTHONPATH"] = os.pathsep.join(str(Path(p).absolute()) for p in env["PYTHONPATH"].split(os.pathsep))
    env["PATH"] = search_path(env)
    env.setdefault("PYTHONUNBUFFERED", "1")  # the log's growth is how progress is seen
    if "HF_HUB_CACHE" not in env:
        env.setdefault("HF_HOME", str(data_dir / "cache" / "huggingface"))
    env |= order.env
    env |= _visible([claim.device for claim in order.claims], order, gpu_index)
    env[MARK_DIR] = str(data_dir)
    env[MARK_INSTANCE], env[MARK_EPOCH], env[MARK_RANK] = key.instance, str(key.epoch), str(key.rank)
    if port is not None:
        env["GPUWARD_PORT"] = str(port)
    return env


def _visible(uuids: list[str], order: StartOrder, gpu_index: Callable[[str], int | None]) -> dict[str, str]:
    """Which GPUs the engine sees: by UUID, which no renumbering changes, or by numbers in the driver's own order."""
    numbers = [gpu_index(uuid) for uuid in uuids] if order.gpus_by_index else [None]
    if None in numbers:
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, numbers))}


def spawn(argv: list[str], env: Mapping[str, str], *, work: Path, log: Path) -> int:
    """Starts the process and returns its pid, which is also the number of its session and group.

    Whoever calls must reap it (`Child` does).

    Raises:
        SpawnError: it could not be started; the message names the program or folder.
    """
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                env=dict(env),
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise SpawnError(f"cannot start {argv[0]!r}: {error}") from error
    # Popen's own reaping would free the pid behind the watch's back, and its destructor complains of a living process.
    process.returncode = 0
    return process.pid
