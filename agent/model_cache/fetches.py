"""Fetches models before processes start: each once, whatever number of processes waits for it."""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from agent.decide.eviction import CachedRevision, Use, choose_evictions, held_bytes, unused
from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.fetch_process import FetchError, FetchProcess
from agent.model_cache.file_lock import LockedError, waited_lock
from agent.model_cache.progress import Progress
from agent.model_cache.use_marks import UseMarks
from schemas.units import format_bytes
from schemas.wire import ModelFetch

_AT_ONCE: Final = 4  # children; others wait
_MIB: Final = 2**20
_ROOM_LIMIT_S: Final = 30.0  # another agent may remove large files meanwhile
_SAVE_LIMIT_S: Final = 15.0

Tell = Callable[[str], None]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Provided:
    """A model that is in the cache.

    Attributes:
        commit: of its revision.
        asked: the hub was asked; else the process should not ask it either.
    """

    commit: str
    asked: bool


@dataclass(slots=True)
class _Running:
    """A fetch under way, and the processes that wait for it."""

    task: asyncio.Task["Provided"]
    waiting: list[Tell] = field(default_factory=list)


class Fetches:
    """All fetches of this host, and its cache.

    Args:
        folder: the cache.
        limit_mib: of the whole cache; None: the disk is the limit.
        offline: the hub is never asked.
        in_use: the repositories that each live process uses.
        marks: what all agents of this host use of the cache.
    """

    def __init__(
        self,
        folder: CacheFolder,
        *,
        limit_mib: int | None,
        offline: bool,
        in_use: Callable[[], Mapping[str, Collection[str]]],
        marks: UseMarks,
    ) -> None:
        self._folder = folder
        self._limit_bytes = None if limit_mib is None else limit_mib * _MIB
        self._offline = offline
        self._in_use = in_use
        self._marks = marks
        self._running: dict[tuple[str, ...], _Running] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._removing = asyncio.Lock()
        self._marking = asyncio.Lock()
        self._wanted: dict[str, int] = {}  # bytes still to be written, by repository
        self._commits = marks.commits()  # that processes use, by process and repository
        self._saves: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Tells other agents what processes use that run already."""
        if self._in_use():
            await self._save()

    async def aclose(self) -> None:
        """Ends all fetches; what is fetched stays."""
        tasks = [one.task for one in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._saves:
            await asyncio.wait(self._saves, timeout=_SAVE_LIMIT_S)

    @property
    def path(self) -> Path:
        """The cache's folder."""
        return self._folder.path

    async def provide(self, user: str, fetch: ModelFetch, own: Mapping[str, str], stall_s: float, tell: Tell) -> bool:
        """Returns once the model is in the cache and this token may read it. Cancelling it only ends the wait of one.

        Args:
            user: the process, as `in_use` names it.
            fetch: the model.
            own: the deployment's variables: its token, and how the hub is reached.
            stall_s: how long the fetch may make no progress.
            tell: is told of progress, in words.

        Returns:
            Whether the hub was asked; else the process should not ask it either.

        Raises:
            FetchError: it cannot be had.
        """
        env = {**os.environ, **{name: value for name, value in own.items() if _is_of_hub(name)}}
        token = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN") or ""
        key = (fetch.repo, fetch.revision, token, env.get("HF_ENDPOINT", ""))
        running = self._running.get(key)
        if running is None:
            coroutine = self._fetch(key, fetch, token, _child_env(env), stall_s)
            running = self._running[key] = _Running(asyncio.create_task(coroutine, name=f"fetch {fetch.repo}"))
        running.waiting.append(tell)
        try:
            await asyncio.wait([running.task])
            provided = running.task.result()
            self._commits.setdefault(user, {})[fetch.repo] = provided.commit
            return provided.asked
        finally:
            running.waiting.remove(tell)
            if not running.waiting:  # nothing waits for it any more
                running.task.cancel()
                if self._running.get(key) is running:
                    del self._running[key]

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
        await self._save()

    async def revisions(self) -> list[CachedRevision]:
        """What the cache holds."""
        return await asyncio.to_thread(self._folder.revisions)

    async def used(self) -> set[Use]:
        """What processes use or wait for, those of other agents of this host too."""
        others, _ = await asyncio.to_thread(self._marks.others)
        return others | self._own_uses()

    def _own_uses(self) -> set[Use]:
        waiting = {(key[0], "") for key in self._running}
        live = self._in_use().items()
        return waiting | {(repo, self._commits.get(user, {}).get(repo, "")) for user, repos in live for repo in repos}

    async def _save(self) -> None:
        """Tells other agents what this one uses. Failures are logged."""
        try:
            await self._mark()
        except OSError as error:  # a TimeoutError is one
            log.warning("uses of the model cache not noted", folder=str(self._folder.path), error=str(error))

    async def _mark(self) -> None:
        async with asyncio.timeout(_SAVE_LIMIT_S), self._marking:
            live = self._in_use()
            commits = {user: dict(known) for user, known in self._commits.items() if user in live}
            await asyncio.to_thread(self._write_marks, self._own_uses(), commits, sum(self._wanted.values()))

    def _write_marks(self, uses: Collection[Use], commits: Mapping[str, Mapping[str, str]], wanted: int) -> None:
        with self._folder.changing():
            self._marks.save(uses, commits, wanted)

    async def prune(self, models: Collection[str], unused_for_s: float) -> list[CachedRevision]:
        """Removes revisions that no process uses; returns them.

        Args:
            models: these, as `org/name` or `org/name@revision`; empty: all.
            unused_for_s: only those that no process has used for so long.
        """
        before_s = time.time() - unused_for_s if unused_for_s else 0.0
        async with self._removing:
            found = [one for one in await self.revisions() if not models or _named(one) & set(models)]
            return await self._remove(unused(found, await self.used(), before_s))

    async def _fetch(
        self, key: tuple[str, ...], fetch: ModelFetch, token: str, env: Mapping[str, str], stall_s: float
    ) -> Provided:
        running = self._running[key]

        def tell(words: str) -> None:
            for one in tuple(running.waiting):
                one(words)

        try:
            await asyncio.to_thread(self._folder.prepare)
            await asyncio.to_thread(self._folder.note_use, fetch.repo, time.time())
            await self._mark()  # from here on no agent removes it
            return await self._from_hub_or_cache(fetch, token, env, stall_s, tell)
        except OSError as error:
            raise FetchError(f"{self._folder.path}: {error}") from error
        finally:
            if self._running.get(key) is running:
                del self._running[key]

    async def _from_hub_or_cache(
        self, fetch: ModelFetch, token: str, env: Mapping[str, str], stall_s: float, tell: Tell
    ) -> Provided:
        if self._offline:
            commit = await self._usable(fetch, token)
            if commit is None:
                raise FetchError(
                    f"hf:{fetch.repo}@{fetch.revision} is not in the cache, and this agent is offline; fetch it while"
                    " the agent is online, or use model: path:/dir"
                )
            return Provided(commit, asked=False)
        try:
            return Provided(await self._ask_hub(fetch, token, env, stall_s, tell), asked=True)
        except FetchError as error:
            if error.final:
                await asyncio.to_thread(self._folder.note_refused, fetch.repo, token)
                raise
            commit = await self._usable(fetch, token)
            if commit is None:
                raise
            log.warning("not fetched, going on with the cached model", model=fetch.repo, error=str(error))
            return Provided(commit, asked=False)

    async def _usable(self, fetch: ModelFetch, token: str) -> str | None:
        return await asyncio.to_thread(self._folder.usable, fetch.repo, fetch.revision, token)

    async def _ask_hub(self, fetch: ModelFetch, token: str, env: Mapping[str, str], stall_s: float, tell: Tell) -> str:
        """Returns the commit."""
        name = f"hf:{fetch.repo}"
        if self._slots.locked():
            tell(f"waits to fetch {name}: {_AT_ONCE} other models are fetched")
        task = {"repo": fetch.repo, "revision": fetch.revision, "token": token, "cache_dir": str(self.path)}
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._slots)
            child = await stack.enter_async_context(FetchProcess(task, env))
            stack.callback(self._wanted.pop, fetch.repo, None)
            progress = Progress(name, stall_s, time.monotonic())
            said = await stack.enter_async_context(aclosing(child.words()))
            told, waits = "", False
            async for words in said:
                if "error" in words:
                    raise FetchError(f"{name} cannot be fetched: {words['error']}", final=bool(words.get("final")))
                if "done" in words:
                    return await self._note_fetched(fetch, token, words["done"])
                if waits := "waits" in words:
                    told = progress.waits(words["waits"], time.monotonic())
                else:
                    if "plan" in words:
                        plan = words["plan"]
                        progress.plan(plan["missing"], plan["there"])
                        await self._make_room(fetch.repo, plan["missing"] - plan["there"])
                        await child.go()
                    elif "bytes" in words:
                        self._wanted[fetch.repo] = progress.left(words["bytes"])
                    told = progress.told(words.get("bytes"), time.monotonic())
                if told:
                    tell(told)
                    await self._save()
                if progress.stalled(time.monotonic()):
                    other = " by another process of this host, which is at it" if waits else ""
                    raise FetchError(f"{name} cannot be fetched: no progress for {stall_s:g} s{other}")
        raise AssertionError("a child's words end with an error at the latest")

    async def _note_fetched(self, fetch: ModelFetch, token: str, done: Mapping[str, Any]) -> str:
        commit = str(done["commit"])
        noted = (fetch.repo, fetch.revision, commit, token)
        await asyncio.to_thread(self._folder.note_fetched, *noted, is_public=done["public"])
        await asyncio.to_thread(self._folder.note_use, fetch.repo, time.time(), commit)
        return commit

    async def _make_room(self, repo: str, needed: int) -> None:
        """Removes what no process uses, until it fits.

        Raises:
            FetchError: it does not fit.
        """
        async with self._removing:
            try:
                async with waited_lock(self._folder.room_lock, _ROOM_LIMIT_S):
                    self._wanted[repo] = needed
                    await self._save()  # before another agent looks
                    await self._remove_until_it_fits(repo, needed)
            except LockedError as error:
                raise FetchError(f"hf:{repo} waits for room in {self.path}: {error}") from error

    async def _remove_until_it_fits(self, repo: str, needed: int) -> None:
        kept: set[Use] = set()  # that another agent has begun to use or to fetch meanwhile
        while True:
            others, wanted = await asyncio.to_thread(self._marks.others)
            revisions = await self.revisions()
            free = await asyncio.to_thread(self._folder.free_bytes)
            chosen = choose_evictions(
                revisions,
                others | self._own_uses() | kept,
                needed_bytes=sum(self._wanted.values()) + wanted,
                free_bytes=free,
                limit_bytes=self._limit_bytes,
            )
            if chosen is None:
                bound = "" if self._limit_bytes is None else f", --cache-limit is {format_bytes(self._limit_bytes)}"
                held = held_bytes(revisions)
                raise FetchError(
                    f"hf:{repo} needs {format_bytes(needed)} more in {self.path}, which does not fit beside what is"
                    f" used: {format_bytes(free)} are free, the cache holds {format_bytes(held)}{bound}; free space,"
                    " or set --cache-dir"
                )
            stayed = {(one.repo, one.commit) for one in chosen} - {
                (one.repo, one.commit) for one in await self._remove(chosen)
            }
            if not stayed:
                return
            kept |= stayed

    async def _remove(self, revisions: Sequence[CachedRevision]) -> list[CachedRevision]:
        """Returns those that were removed: not those that an agent uses or fetches by now."""
        await self._save()
        removed = []
        for one in revisions:
            if await asyncio.to_thread(self._folder.remove, one, self._marks.all_uses):
                removed.append(one)
                log.info("cached model removed", model=one.repo, commit=one.commit, bytes=one.size_bytes)
        return removed


def _named(one: CachedRevision) -> set[str]:
    return {one.repo, f"{one.repo}@{one.commit}", *(f"{one.repo}@{name}" for name in one.names)}


_OURS: Final = "GPUWARD_"
_CONNECTIONS: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"})
_CACHE_VARIABLES: Final = frozenset({"HF_HUB_CACHE", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"})


def _is_of_hub(name: str) -> bool:
    """Whether a deployment's variable says how its hub is reached. Others are its server's alone."""
    return name.startswith(("HF_", "HUGGING_FACE_")) or name.upper() in _CONNECTIONS


def _child_env(env: Mapping[str, str]) -> dict[str, Any]:
    """The environment without what the child gets as its task."""
    return {name: value for name, value in env.items() if not name.startswith(_OURS) and name not in _CACHE_VARIABLES}
