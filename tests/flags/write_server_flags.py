"""Writes server_flags.json of controller/engines/arguments: for each flag the versions whose parser has it."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from flags.conftest import ROOT, SERVERS, llama_flags, read

FILE = ROOT / "controller/engines/arguments/server_flags.json"


def tables() -> dict[str, dict[str, list[str]]]:
    """For each engine and flag the versions, oldest first."""
    found: dict[str, dict[str, list[str]]] = {}
    for engine, servers in SERVERS.items():
        for server in servers:
            _add(found.setdefault(engine, {}), read(server).long, server.rpartition("-")[2])
    for build, flags in llama_flags().items():
        _add(found.setdefault("llama-cpp", {}), flags, build)
    return {engine: dict(sorted(flags.items())) for engine, flags in sorted(found.items())}


def _add(table: dict[str, list[str]], flags: frozenset[str], version: str) -> None:
    for flag in flags:
        table.setdefault(flag, []).append(version)


if __name__ == "__main__":
    lines = [
        f'  "{engine}": {{\n'
        + ",\n".join(f"    {json.dumps(flag)}: {json.dumps(versions)}" for flag, versions in flags.items())
        + "\n  }"
        for engine, flags in tables().items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
