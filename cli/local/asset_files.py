"""Which files of the sources the wheel carries for operators, and where `gpuward assets` puts them.

The build of the wheel loads it by its path, so it imports the standard library alone.
"""

from pathlib import Path
from typing import Final

# Patterns below the folder of the sources, and the folder of the assets. `**` keeps the folders below it.
_PATTERNS: Final = (
    ("docker-compose.yml", ""),
    ("deploy/install-agent.sh", ""),
    ("deploy/systemd/*", "systemd"),
    ("deploy/haproxy/*.cfg", "haproxy"),
    ("deploy/prometheus/*.yaml", "prometheus"),
    ("deploy/grafana/*.json", "grafana"),
    ("deploy/kubernetes/*.yaml", "kubernetes"),
    ("deploy/helm/**/*", "helm"),
)


def asset_files(sources: Path) -> dict[str, Path]:
    """The file in the sources of each asset, by its path among the assets."""
    found = {}
    for pattern, folder in _PATTERNS:
        base = sources / pattern.partition("*")[0].rpartition("/")[0] if "**" in pattern else None
        for file in sorted(sources.glob(pattern)):
            if file.is_file():
                name = file.relative_to(base) if base else Path(file.name)
                found[(Path(folder) / name).as_posix()] = file
    return found
