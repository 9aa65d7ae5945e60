"""What each agent of this host uses of a shared cache, in a file of each agent beside the models. Blocks.

A mark outlives its agent, since the engines do. It counts until its agent writes it anew or the host has rebooted.
"""

import json
import secrets
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from agent.decide.eviction import Use

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
    """The marks of all agents.

    Args:
        folder: of the marks.
        agent: this agent's id.
        boot_id: of the host now.
    """

    def __init__(self, folder: Path, agent: str, boot_id: str) -> None:
        self._folder = folder
        self._own = folder / f"{agent}.json"
        self._boot_id = boot_id

    def commits(self) -> dict[str, dict[str, str]]:
        """What this agent noted before its restart: of each process the commit of each model."""
        known = self._read(self._own)
        return {} if known is None else known["commits"]

    def save(self, uses: Collection[Use], commits: Mapping[str, Mapping[str, str]], wanted_bytes: int) -> None:
        """Says what this agent uses, and how much it is about to write."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        told = {
            "boot_id": self._boot_id,
            "uses": sorted(uses),
            "commits": {user: dict(known) for user, known in commits.items()},
            "wanted_bytes": wanted_bytes,
            "written_s": time.time(),
        }
        new = self._own.with_suffix(".new")
        new.write_text(json.dumps(told), encoding="utf-8")
        new.replace(self._own)

    def all_uses(self) -> set[Use]:
        """What all agents use, this one as it has said last."""
        own = self._read(self._own)
        return self.others()[0] | ({(repo, commit) for repo, commit in own["uses"]} if own else set())

    def others(self) -> tuple[set[Use], int]:
        """What other agents use, and the bytes that they are about to write."""
        uses: set[Use] = set()
        wanted = 0
        for path in self._folder.glob("*.json"):
            known = None if path == self._own else self._read(path)
            if known is not None:
                uses |= {(repo, commit) for repo, commit in known["uses"]}
                if abs(time.time() - known["written_s"]) < _WANTED_FOR_S:
                    wanted += known["wanted_bytes"]
        return uses, wanted

    def _read(self, path: Path) -> dict[str, Any] | None:
        """None: there is none, or the host has rebooted since."""
        try:
            known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return known if known["boot_id"] == self._boot_id else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
