"""Uses of the cache: by this agent's processes and fetches, and by other agents of the host.

Each agent marks its uses in a file next to the models. A mark outlives its agent, since the engines do. It counts until
its agent writes it again or the host has rebooted.
"""

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from agent.decide.eviction import Use
from agent.model_cache.beneath import OpenFolder, PlaceBeneath
from agent.model_cache.cache_folder import CacheFolder

_SAVE_LIMIT_S: Final = 15.0
_ID_FILE: Final = "cache-agent"
_WANTED_FOR_S: Final = 60.0  # a fetching agent writes more often

log = structlog.get_logger()


def agent_id(data_dir: Path) -> str:
    """The id of a data folder's agent, stable over restarts."""
    path = data_dir / _ID_FILE
    with suppress(OSError):
        known = path.read_text(encoding="ascii").strip()
        if known.isalnum():
            return known
    made = secrets.token_hex(8)
    path.write_text(made, encoding="ascii")
    return made


class UseMarks:
    """The marks of all agents. Its methods block."""

    def __init__(self, folder: PlaceBeneath, agent: str, boot_id: str) -> None:
        self._folder = folder
        self._own = f"{agent}.json"
        self._boot_id = boot_id

    def commits(self) -> dict[str, dict[str, str]]:
        """Commits by process and model, as this agent noted them before its restart."""
        known = self._all().get(self._own)
        return {} if known is None else known["commits"]

    def save(self, uses: Collection[Use], commits: Mapping[str, Mapping[str, str]], wanted_bytes: int) -> None:
        """Writes this agent's uses, and the bytes that it is about to fetch."""
        mark = {
            "boot_id": self._boot_id,
            "uses": sorted(uses),
            "commits": {user: dict(known) for user, known in commits.items()},
            "wanted_bytes": wanted_bytes,
            "written_s": time.time(),
        }
        with self._folder.open(make=0o700) as folder:
            folder.replace_text(self._own, json.dumps(mark), 0o600)

    def all_uses(self) -> set[Use]:
        """Uses of all agents, as last written."""
        return {(repo, commit) for known in self._all().values() for repo, commit in known["uses"]}

    def others(self) -> tuple[set[Use], int]:
        """Uses of other agents, and the bytes that they are about to fetch."""
        uses: set[Use] = set()
        wanted = 0
        for name, known in self._all().items():
            if name != self._own:
                uses |= {(repo, commit) for repo, commit in known["uses"]}
                if abs(time.time() - known["written_s"]) < _WANTED_FOR_S:
                    wanted += known["wanted_bytes"]
        return uses, wanted

    def _all(self) -> dict[str, dict[str, Any]]:
        """The marks of this boot, by file name."""
        marks = {}
        with suppress(OSError), self._folder.open() as folder:
            for name in folder.entries():
                known = self._read(folder, name) if name.endswith(".json") else None
                if known is not None:
                    marks[name] = known
        return marks

    def _read(self, folder: OpenFolder, name: str) -> dict[str, Any] | None:
        """None if unreadable, or of an earlier boot."""
        try:
            known: dict[str, Any] = json.loads(folder.read_text(name))
            return known if known["boot_id"] == self._boot_id else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


class CacheUses:
    """This agent's uses, and those of other agents of the host."""

    def __init__(
        self,
        folder: CacheFolder,
        marks: UseMarks,
        in_use: Callable[[], Mapping[str, Collection[str]]],
        fetching: Callable[[], Iterable[str]],
    ) -> None:
        self._folder = folder
        self._marks = marks
        self._in_use = in_use
        self._fetching = fetching
        self.wanted: dict[str, int] = {}  # bytes still to be written, by repository
        self._commits = marks.commits()  # in use, by process and repository
        self._marking = asyncio.Lock()
        self._saves: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Marks the uses of adopted processes."""
        if self._in_use():
            await self.save()

    async def aclose(self) -> None:
        """Waits until ends of uses are noted."""
        if self._saves:
            await asyncio.wait(self._saves, timeout=_SAVE_LIMIT_S)

    def note(self, user: str, repo: str, commit: str) -> None:
        """A process uses this revision from now on."""
        self._commits.setdefault(user, {})[repo] = commit

    def note_end(self, user: str, repos: Collection[str]) -> None:
        """A process no longer uses these."""
        commits = self._commits.pop(user, {})
        if repos:
            used = {repo: commits.get(repo, "") for repo in repos}
            task = asyncio.create_task(self._note_end(used), name=f"note the end of use by {user}")
            self._saves.add(task)
            task.add_done_callback(self._saves.discard)

    async def _note_end(self, used: Mapping[str, str]) -> None:
        for repo, commit in used.items():
            with suppress(OSError):
                await asyncio.to_thread(self._folder.note_use, repo, time.time(), commit)
        await self.save()

    def own(self) -> set[Use]:
        """Models that this agent's processes use or wait for."""
        waiting = {(repo, "") for repo in self._fetching()}
        live = self._in_use().items()
        return waiting | {(repo, self._commits.get(user, {}).get(repo, "")) for user, repos in live for repo in repos}

    async def others(self) -> tuple[set[Use], int]:
        """As `UseMarks.others`."""
        return await asyncio.to_thread(self._marks.others)

    async def used(self) -> set[Use]:
        """Models that processes of all agents use or wait for."""
        others, _ = await self.others()
        return others | self.own()

    def marked(self) -> set[Use]:
        """Uses of all agents, as last written. Blocks."""
        return self._marks.all_uses()

    async def save(self) -> None:
        """As `mark`; failures are logged."""
        try:
            await self.mark()
        except OSError as error:  # a TimeoutError is one
            log.warning("uses of the model cache not noted", folder=str(self._folder.path), error=str(error))

    async def mark(self) -> None:
        """Writes this agent's uses for other agents. Raises OSError, also after a time-out."""
        async with asyncio.timeout(_SAVE_LIMIT_S), self._marking:
            live = self._in_use()
            commits = {user: dict(known) for user, known in self._commits.items() if user in live}
            await asyncio.to_thread(self._write, self.own(), commits, sum(self.wanted.values()))

    def _write(self, uses: Collection[Use], commits: Mapping[str, Mapping[str, str]], wanted: int) -> None:
        with self._folder.changing():
            self._marks.save(uses, commits, wanted)
