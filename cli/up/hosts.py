"""The workers of `up`: this host, simulated hosts of a file, or default simulated hosts.

Their list is stored in its data folder, where `gpuward doctor` reads it from another process.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.errors import UsageError

AGENTS: Final = "agents"  # the agents' data folders, in the data folder
CACHE: Final = "models"
LOOPBACK: Final = "127.0.0.1"
_FILE: Final = "agents.json"
DEFAULT_SIMULATED: Final = 2
MAX_LOCAL_AGENTS: Final = 256
_GPUS: Final = [{"model": "NVIDIA H100 80GB HBM3", "memory": "80GiB", "count": 8, "compute_capability": "9.0"}]


@dataclass(frozen=True, slots=True)
class LocalHost:
    """A worker to run here. `simulate` is the file of simulated hosts; None: the worker is this host."""

    name: str
    simulate: Path | None = None


@dataclass(frozen=True, slots=True)
class HostChoice:
    """The user's choice: a file of simulated hosts, and their number."""

    simulate: Path | None = None
    agents: int | None = None


def simulated_hosts(choice: HostChoice, data_dir: Path) -> list[LocalHost]:
    """Writes a file into the data folder if the user has none. Raises `UsageError` for an invalid or too short file."""
    file = choice.simulate
    if file is None:
        count = choice.agents if choice.agents is not None else DEFAULT_SIMULATED
        file = data_dir / "simulated-hosts.yaml"
        file.write_text(_default_hosts(count), encoding="utf-8")
    file = file.absolute()
    names = read_host_names(file)
    if choice.agents is not None and choice.agents > len(names):
        raise UsageError(f"--agents: must be at most {len(names)}, the number of hosts in {file}, got {choice.agents}")
    names = names[: choice.agents]
    if len(names) > MAX_LOCAL_AGENTS:
        raise UsageError(
            f"--simulate: {len(names)} hosts exceed the limit of one process; use --agents {MAX_LOCAL_AGENTS}"
        )
    return [LocalHost(name, file) for name in names]


def read_host_names(file: Path) -> list[str]:
    """The names of the hosts in a file; an entry with `count` has several. Raises `UsageError` for an invalid file."""
    import yaml  # noqa: PLC0415 - slow to import
    from pydantic import ValidationError  # noqa: PLC0415 - as above

    from schemas.simulated import SimulatedHosts  # noqa: PLC0415 - as above

    try:
        return list(SimulatedHosts.model_validate(yaml.safe_load(file.read_text(encoding="utf-8"))).expanded())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"--simulate: {file} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "(file)"
        raise UsageError(
            f"--simulate: {file} does not describe simulated hosts: {where}: {first['msg']}; "
            "write for example: workers: [{name: gpu-1, gpus: [{model: H100, memory: 80GiB, count: 8}]}]"
        ) from error
    except ValueError as error:
        raise UsageError(f"--simulate: {file}: {error}") from error


def _default_hosts(count: int) -> str:
    import yaml  # noqa: PLC0415 - slow to import

    # each host has the memory and the cores of this machine, on which all engines run
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    host = {"host_memory": f"{memory_mib}MiB", "cpus": os.cpu_count() or 1, "gpus": _GPUS}
    workers = [{"name": f"gpu-{number}", **host} for number in range(1, count + 1)]
    return yaml.safe_dump({"workers": workers}, sort_keys=False)


def write_local_agents(data_dir: Path, hosts: Sequence[LocalHost]) -> None:
    files = {host.name: None if host.simulate is None else str(host.simulate) for host in hosts}
    (data_dir / _FILE).write_text(json.dumps(files), encoding="utf-8")


def read_local_agents(data_dir: Path) -> list[LocalHost]:
    """The workers of the last `up` on this folder; empty if unknown."""
    try:
        files = json.loads((data_dir / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(files, Mapping):
        return []
    return [
        LocalHost(name, None if file is None else Path(file))
        for name, file in files.items()
        if file is None or isinstance(file, str)
    ]
