"""What this agent's processes and fetches use of the cache, and what other agents of the host learn of it."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

import structlog

from agent.decide.eviction import Use
from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.use_marks import UseMarks

_SAVE_LIMIT_S: Final = 15.0

log = structlog.get_logger()


class CacheUses:
    """Keeps the uses, and writes them where other agents read them."""

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
        self._commits = marks.commits()  # that processes use, by process and repository
        self._marking = asyncio.Lock()
        self._saves: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Reports to other agents what processes use that run already."""
        if self._in_use():
            await self.save()

    async def aclose(self) -> None:
        """Waits until the last ends of uses are noted."""
        if self._saves:
            await asyncio.wait(self._saves, timeout=_SAVE_LIMIT_S)

    def note(self, user: str, repo: str, commit: str) -> None:
        """A process uses this revision from now on."""
        self._commits.setdefault(user, {})[repo] = commit

    def note_end(self, user: str, repos: Collection[str]) -> None:
        """A process has used these until now."""
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
        """What this agent's processes use or wait for."""
        waiting = {(repo, "") for repo in self._fetching()}
        live = self._in_use().items()
        return waiting | {(repo, self._commits.get(user, {}).get(repo, "")) for user, repos in live for repo in repos}

    async def others(self) -> tuple[set[Use], int]:
        """What other agents of this host use or wait for, and the bytes that they are about to write."""
        return await asyncio.to_thread(self._marks.others)

    async def used(self) -> set[Use]:
        """What processes use or wait for, those of other agents of this host too."""
        others, _ = await self.others()
        return others | self.own()

    def marked(self) -> set[Use]:
        """What all agents have written, this one too. Blocks."""
        return self._marks.all_uses()

    async def save(self) -> None:
        """Reports to other agents what this one uses. Failures are logged."""
        try:
            await self.mark()
        except OSError as error:  # a TimeoutError is one
            log.warning("uses of the model cache not noted", folder=str(self._folder.path), error=str(error))

    async def mark(self) -> None:
        """As `save`. Raises OSError if they cannot be written, or not in time."""
        async with asyncio.timeout(_SAVE_LIMIT_S), self._marking:
            live = self._in_use()
            commits = {user: dict(known) for user, known in self._commits.items() if user in live}
            await asyncio.to_thread(self._write, self.own(), commits, sum(self.wanted.values()))

    def _write(self, uses: Collection[Use], commits: Mapping[str, Mapping[str, str]], wanted: int) -> None:
        with self._folder.changing():
            self._marks.save(uses, commits, wanted)
