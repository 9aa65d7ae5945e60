"""The argv, environment and log of an engine."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Final

from agent.decide.containers import fill_in
from agent.decide.engine_environment import passed_on
from agent.host_inventory.installed_engines import search_path
from agent.processes.account import Account
from agent.processes.procfs import MARK_DIR, MARK_EPOCH, MARK_INSTANCE, MARK_RANK
from agent.state.process_records import ProcessKey
from schemas.hub import OWN_CACHE
from schemas.wire import StartOrder

# -P: Python must not search the engine's working folder for the agent's modules.
SIMULATED_ENGINE: Final = (sys.executable, "-P", "-m", "agent.simulated_engine")
# Controllers before 0.2 send the module's name instead of the placeholder.
_SIMULATED_ENGINE_NAMES: Final = (("{simulated_engine}",), ("{python}", "-m", "gpuward.agent.simulated_engine"))

_WRITTEN_BY_GROUP: Final = 0o620
_OF_ITS_ACCOUNT: Final = "XDG_"  # folders in the agent's home


def engine_argv(order: StartOrder, port: int | None) -> list[str]:
    """The argv with {port}, {python} and {simulated_engine} filled in; other braces stay."""
    values = {"{python}": sys.executable}
    if port is not None:
        values["{port}"] = str(port)
    parts = order.argv
    for names in _SIMULATED_ENGINE_NAMES:
        if parts[: len(names)] == names:
            parts = (*SIMULATED_ENGINE, *parts[len(names) :])
    return [fill_in(part, values) for part in parts]


def engine_env(
    base: Mapping[str, str],
    order: StartOrder,
    key: ProcessKey,
    *,
    port: int | None,
    data_dir: Path,
    cache_dir: Path,
    gpu_index: Callable[[str], int | None] = lambda _uuid: None,
    own: Mapping[str, str] | None = None,
    listed: Iterable[str] = (),
) -> dict[str, str]:
    """The engine's environment: allowed variables of the agent, the order's, and the marker.

    Args:
        base: the agent's environment.
        order: of the start.
        key: for the marker.
        port: of the engine.
        data_dir: for the marker.
        cache_dir: of models of the hub that the agent fetches. An engine that fetches by itself gets another cache,
            since the bound of this one would not count its files.
        gpu_index: returns a GPU's present index on this host, for engines without support for UUIDs.
        own: `account_env` of another account than the agent's.
        listed: additional variables that the host's administrator allows.
    """
    env = passed_on(base, listed)
    if own is not None:
        env = {name: value for name, value in env.items() if not name.startswith(_OF_ITS_ACCOUNT)} | dict(own)
    if "PYTHONPATH" in env:  # relative folders refer to the agent's working folder, not to the engine's
        env["PYTHONPATH"] = os.pathsep.join(str(Path(p).absolute()) for p in env["PYTHONPATH"].split(os.pathsep))
    env["PATH"] = search_path(env)
    env.setdefault("PYTHONUNBUFFERED", "1")  # output in the log counts as progress
    if order.fetches and not order.env.keys() & OWN_CACHE:
        env["HF_HUB_CACHE"] = str(cache_dir)  # the agent's cache
    env.setdefault("HF_HOME", str(data_dir / "cache" / "huggingface"))
    env |= order.env
    env |= _visible_gpus([claim.device for claim in order.claims], order, gpu_index)
    env[MARK_DIR] = str(data_dir)
    env[MARK_INSTANCE], env[MARK_EPOCH], env[MARK_RANK] = key.instance, str(key.epoch), str(key.rank)
    if port is not None:
        env["GPUWARD_PORT"] = str(port)
    return env


def account_env(account: Account, home: Path) -> dict[str, str]:
    """Variables of another account than the agent's."""
    name = str(account.uid)
    return {"HOME": str(home), "USER": name, "LOGNAME": name, "HF_HOME": str(home / ".cache" / "huggingface")}


def open_log(log: Path, account: Account | None) -> IO[bytes]:
    """Opens the log for appending. Only the agent can read it; the account may reopen it as /dev/stdout."""
    output = log.open("ab")
    if account is not None:
        os.fchown(output.fileno(), -1, account.gid)
        os.fchmod(output.fileno(), _WRITTEN_BY_GROUP)
    return output


def unreachable(program: str, env: Mapping[str, str], account: Account | None) -> str:
    """A message if the account may not enter a folder on the way to the program; else empty."""
    file = shutil.which(program, path=env.get("PATH"))
    if account is None or file is None:
        return ""
    stopped = account.stopped_at(Path(file)) or account.stopped_at(Path(file).resolve())
    return "" if stopped is None else f"; engines run as uid {account.uid}, which may not enter {stopped}"


def _visible_gpus(uuids: list[str], order: StartOrder, gpu_index: Callable[[str], int | None]) -> dict[str, str]:
    """The engine's GPUs: by UUID, which never changes, or by index in the driver's order."""
    indexes = [gpu_index(uuid) for uuid in uuids] if order.gpus_by_index else [None]
    if None in indexes:
        return {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, indexes))}
