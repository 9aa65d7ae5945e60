"""What each agent of this host uses of a shared cache, in a file of each agent next to the models. Blocks.

A mark outlives its agent, since the engines do. It counts until its agent writes it again or the host has rebooted.
"""

import json
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from agent.decide.eviction import Use
from agent.model_cache.beneath import OpenFolder, PlaceBeneath

_ID_FILE: Final = "cache-agent"
_WANTED_FOR_S: Final = 60.0  # an agent that still fetches says so more often


def agent_id(data_dir: Path) -> str:
    """Identifies the agent of a data folder, also after its restart."""
    path = data_dir / _ID_FILE
    with suppress(OSError):
        known = path.read_text(encoding="ascii").strip()
        if known.isalnum():
            return known
    made = secrets.token_hex(8)
    path.write_text(made, encoding="ascii")
    return made


class UseMarks:
    """The marks of all agents."""

    def __init__(self, folder: PlaceBeneath, agent: str, boot_id: str) -> None:
        self._folder = folder
        self._own = f"{agent}.json"
        self._boot_id = boot_id

    def commits(self) -> dict[str, dict[str, str]]:
        """What this agent noted before its restart: of each process the commit of each model."""
        known = self._all().get(self._own)
        return {} if known is None else known["commits"]

    def save(self, uses: Collection[Use], commits: Mapping[str, Mapping[str, str]], wanted_bytes: int) -> None:
        """Writes what this agent uses, and how much it is about to write."""
        told = {
            "boot_id": self._boot_id,
            "uses": sorted(uses),
            "commits": {user: dict(known) for user, known in commits.items()},
            "wanted_bytes": wanted_bytes,
            "written_s": time.time(),
        }
        with self._folder.open(make=0o700) as folder:
            folder.replace_text(self._own, json.dumps(told), 0o600)

    def all_uses(self) -> set[Use]:
        """What all agents use, this one as it has said last."""
        return {(repo, commit) for known in self._all().values() for repo, commit in known["uses"]}

    def others(self) -> tuple[set[Use], int]:
        """What other agents use, and the bytes that they are about to write."""
        uses: set[Use] = set()
        wanted = 0
        for name, known in self._all().items():
            if name != self._own:
                uses |= {(repo, commit) for repo, commit in known["uses"]}
                if abs(time.time() - known["written_s"]) < _WANTED_FOR_S:
                    wanted += known["wanted_bytes"]
        return uses, wanted

    def _all(self) -> dict[str, dict[str, Any]]:
        """The marks of this boot, by the name of their file."""
        found = {}
        with suppress(OSError), self._folder.open() as folder:
            for name in folder.entries():
                known = self._read(folder, name) if name.endswith(".json") else None
                if known is not None:
                    found[name] = known
        return found

    def _read(self, folder: OpenFolder, name: str) -> dict[str, Any] | None:
        """None: it cannot be read, or the host has rebooted since."""
        try:
            known: dict[str, Any] = json.loads(folder.read_text(name))
            return known if known["boot_id"] == self._boot_id else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
