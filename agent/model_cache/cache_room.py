"""Evicts unused revisions from the cache, the longest unused first."""

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Final

import structlog

from agent.decide.eviction import CachedRevision, Use, choose_evictions, held_bytes, unused
from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.cache_uses import CacheUses
from agent.model_cache.fetch_errors import FetchError
from agent.model_cache.file_lock import LockedError, waited_lock
from schemas.exit_causes import Cause
from schemas.units import format_bytes

_MIB: Final = 2**20
_ROOM_LIMIT_S: Final = 30.0  # another agent may be removing large files

log = structlog.get_logger()


class CacheRoom:
    """The space of the cache."""

    def __init__(self, folder: CacheFolder, limit_mib: int | None, uses: CacheUses) -> None:
        self._folder = folder
        self._limit_bytes = None if limit_mib is None else limit_mib * _MIB
        self._uses = uses
        self._removing = asyncio.Lock()

    async def revisions(self) -> list[CachedRevision]:
        return await asyncio.to_thread(self._folder.revisions)

    async def prune(self, models: Collection[str], unused_for_s: float) -> list[CachedRevision]:
        """Removes revisions that no process has used for `unused_for_s`; returns them.

        `models`: as `org/name` or `org/name@revision`; empty: all.
        """
        wanted = set(models)
        before_s = time.time() - unused_for_s if unused_for_s else 0.0
        async with self._removing:
            chosen = [r for r in await self.revisions() if not wanted or _names_of(r) & wanted]
            return await self._remove(unused(chosen, await self._uses.used(), before_s))

    async def make(self, repo: str, needed: int) -> None:
        """Evicts revisions until `needed` bytes of a model fit. Raises FetchError if they do not fit."""
        async with self._removing:
            try:
                async with waited_lock(self._folder.room_lock, _ROOM_LIMIT_S):
                    self._uses.wanted[repo] = needed
                    await self._uses.save()  # before another agent evicts
                    await self._remove_until_it_fits(repo, needed)
            except LockedError as error:
                raise FetchError(f"hf:{repo} waits for room in {self._folder.path}: {error}") from error

    async def _remove_until_it_fits(self, repo: str, needed: int) -> None:
        kept: set[Use] = set()  # used or fetched by another agent since
        while True:
            others, wanted = await self._uses.others()
            revisions = await self.revisions()
            free = await asyncio.to_thread(self._folder.free_bytes)
            chosen = choose_evictions(
                revisions,
                others | self._uses.own() | kept,
                needed_bytes=sum(self._uses.wanted.values()) + wanted,
                free_bytes=free,
                limit_bytes=self._limit_bytes,
            )
            if chosen is None:
                bound = "" if self._limit_bytes is None else f", --cache-limit is {format_bytes(self._limit_bytes)}"
                held = held_bytes(revisions)
                raise FetchError(
                    f"hf:{repo} needs {format_bytes(needed)} more in {self._folder.path}, which does not fit beside"
                    f" what is used: {format_bytes(free)} are free, the cache holds {format_bytes(held)}{bound}; free"
                    " space, or set --cache-dir",
                    code=Cause.NO_DISK_SPACE,
                )
            removed = {(r.repo, r.commit) for r in await self._remove(chosen)}
            stayed = {(r.repo, r.commit) for r in chosen} - removed
            if not stayed:
                return
            kept |= stayed

    async def _remove(self, revisions: Sequence[CachedRevision]) -> list[CachedRevision]:
        """Returns the removed revisions, without those that an agent uses or fetches by now."""
        await self._uses.save()
        removed = []
        for revision in revisions:
            model, commit = revision.repo, revision.commit
            try:
                if await asyncio.to_thread(self._folder.remove, revision, self._uses.marked):
                    removed.append(revision)
                    log.info("cached model removed", model=model, commit=commit, bytes=revision.size_bytes)
            except (OSError, ValueError) as error:  # such as a link in the way: other revisions may still be removed
                log.warning("cached model not removed", model=model, commit=commit, error=str(error))
        return removed


def _names_of(revision: CachedRevision) -> set[str]:
    repo = revision.repo
    return {repo, f"{repo}@{revision.commit}", *(f"{repo}@{name}" for name in revision.names)}
