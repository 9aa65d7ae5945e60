"""The agents of an `up`, in a file of its data folder: `gpuward doctor` examines them from another process."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cli.up.hosts import LocalHost

AGENTS: Final = "agents"  # the agents' data folders, in the data folder
CACHE: Final = "models"
LOOPBACK: Final = "127.0.0.1"
_FILE: Final = "agents.json"


def write_local_agents(data_dir: Path, hosts: Sequence[LocalHost]) -> None:
    """Records which workers run here.

    Raises:
        OSError: the folder is not writable.
    """
    files = {host.name: None if host.simulate is None else str(host.simulate) for host in hosts}
    (data_dir / _FILE).write_text(json.dumps(files), encoding="utf-8")


def read_local_agents(data_dir: Path) -> list[LocalHost]:
    """The workers of the last `up` on this folder; none where there was none, or it is not readable."""
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
