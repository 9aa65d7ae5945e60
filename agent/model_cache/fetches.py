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

from agent.decide.eviction import CachedModel, choose_evictions, unused
from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.fetch_process import FetchError, FetchProcess
from agent.model_cache.progress import Progress
from schemas.quantities import format_bytes
from schemas.wire import ModelFetch

_AT_ONCE: Final = 4  # children; others wait
_MIB: Final = 2**20

Tell = Callable[[str], None]
log = structlog.get_logger()


@dataclass(slots=True)
class _Running:
    """A fetch under way, and the processes that wait for it."""

    task: asyncio.Task[bool]
    waiting: list[Tell] = field(default_factory=list)


class Fetches:
    """All fetches of this host, and its cache.

    Args:
        folder: the cache.
        limit_mib: of the whole cache; None: the disk is the limit.
        offline: the hub is never asked.
        in_use: repositories that processes use.
    """

    def __init__(
        self, folder: CacheFolder, *, limit_mib: int | None, offline: bool, in_use: Callable[[], Collection[str]]
    ) -> None:
        self._folder = folder
        self._limit_bytes = None if limit_mib is None else limit_mib * _MIB
        self._offline = offline
        self._in_use = in_use
        self._running: dict[tuple[str, ...], _Running] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._removing = asyncio.Lock()
        self._wanted: dict[str, int] = {}  # bytes still to be written, by repository

    async def aclose(self) -> None:
        """Ends all fetches; what is fetched stays."""
        tasks = [one.task for one in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def path(self) -> Path:
        """The cache's folder."""
        return self._folder.path

    async def provide(self, fetch: ModelFetch, own: Mapping[str, str], stall_s: float, tell: Tell) -> bool:
        """Returns once the model is in the cache and this token may read it. Cancelling it only ends the wait of one.

        Args:
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
            return running.task.result()
        finally:
            running.waiting.remove(tell)
            if not running.waiting:  # nothing waits for it any more
                running.task.cancel()
                if self._running.get(key) is running:
                    del self._running[key]

    def note_use(self, repos: Collection[str]) -> None:
        """A process has used these until now."""
        for repo in repos:
            with suppress(OSError):
                self._folder.note_use(repo, time.time())

    async def models(self) -> list[CachedModel]:
        """What the cache holds."""
        return await asyncio.to_thread(self._folder.models)

    def used(self) -> set[str]:
        """The repositories that processes use or wait for."""
        return {*self._in_use(), *(key[0] for key in self._running)}

    async def prune(self, repos: Collection[str], unused_for_s: float) -> list[CachedModel]:
        """Removes models that no process uses; returns them.

        Args:
            repos: these; empty: all.
            unused_for_s: only those that no process has used for so long.
        """
        before_s = time.time() - unused_for_s if unused_for_s else 0.0
        async with self._removing:
            models = [one for one in await self.models() if not repos or one.repo in repos]
            return await self._remove(unused(models, self.used(), before_s))

    async def _fetch(
        self, key: tuple[str, ...], fetch: ModelFetch, token: str, env: Mapping[str, str], stall_s: float
    ) -> bool:
        running = self._running[key]

        def tell(words: str) -> None:
            for one in tuple(running.waiting):
                one(words)

        try:
            await asyncio.to_thread(self._folder.prepare)
            await asyncio.to_thread(self._folder.note_use, fetch.repo, time.time())
            return await self._from_hub_or_cache(fetch, token, env, stall_s, tell)
        except OSError as error:
            raise FetchError(f"{self._folder.path}: {error}") from error
        finally:
            if self._running.get(key) is running:
                del self._running[key]

    async def _from_hub_or_cache(
        self, fetch: ModelFetch, token: str, env: Mapping[str, str], stall_s: float, tell: Tell
    ) -> bool:
        """Whether the hub was asked."""
        if self._offline:
            if not await self._may_use(fetch, token):
                raise FetchError(
                    f"hf:{fetch.repo}@{fetch.revision} is not in the cache, and this agent is offline; fetch it while"
                    " the agent is online, or use model: path:/dir"
                )
            return False
        try:
            await self._ask_hub(fetch, token, env, stall_s, tell)
        except FetchError as error:
            if error.final:
                await asyncio.to_thread(self._folder.note_refused, fetch.repo, token)
                raise
            if not await self._may_use(fetch, token):
                raise
            log.warning("hub not reached, going on with the cached model", model=fetch.repo, error=str(error))
            return False
        return True

    async def _may_use(self, fetch: ModelFetch, token: str) -> bool:
        return await asyncio.to_thread(self._folder.may_use, fetch.repo, fetch.revision, token)

    async def _ask_hub(self, fetch: ModelFetch, token: str, env: Mapping[str, str], stall_s: float, tell: Tell) -> None:
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
            async for words in said:
                if "error" in words:
                    raise FetchError(f"{name} cannot be fetched: {words['error']}", final=bool(words.get("final")))
                if "done" in words:
                    done = words["done"]
                    await asyncio.to_thread(
                        self._folder.note_fetched,
                        *(fetch.repo, fetch.revision, done["commit"], token),
                        is_public=done["public"],
                    )
                    return
                if "plan" in words:
                    plan = words["plan"]
                    progress.plan(plan["missing"], plan["there"])
                    await self._make_room(fetch.repo, plan["missing"] - plan["there"])
                    await child.go()
                elif "bytes" in words:
                    self._wanted[fetch.repo] = progress.left(words["bytes"])
                elif "waits" in words:
                    progress.waits(time.monotonic())
                told = progress.told(words.get("bytes"), time.monotonic())
                if told:
                    tell(told)
                if progress.stalled(time.monotonic()):
                    raise FetchError(f"{name} cannot be fetched: no progress for {stall_s:g} s")

    async def _make_room(self, repo: str, needed: int) -> None:
        """Removes what no process uses, until it fits.

        Raises:
            FetchError: it does not fit.
        """
        async with self._removing:
            self._wanted[repo] = needed
            all_needed = sum(self._wanted.values())
            models = await self.models()
            free = await asyncio.to_thread(self._folder.free_bytes)
            chosen = choose_evictions(
                models, self.used(), needed_bytes=all_needed, free_bytes=free, limit_bytes=self._limit_bytes
            )
            if chosen is None:
                bound = "" if self._limit_bytes is None else f", --cache-limit is {format_bytes(self._limit_bytes)}"
                held = sum(one.size_bytes for one in models)
                raise FetchError(
                    f"hf:{repo} needs {format_bytes(needed)} more in {self.path}, which does not fit beside what is"
                    f" used: {format_bytes(free)} are free, the cache holds {format_bytes(held)}{bound}; free space,"
                    " or set --cache-dir"
                )
            await self._remove(chosen)

    async def _remove(self, models: Sequence[CachedModel]) -> list[CachedModel]:
        for one in models:
            await asyncio.to_thread(self._folder.remove, one.repo)
            log.info("cached model removed", model=one.repo, bytes=one.size_bytes)
        return list(models)


_OURS: Final = "GPUWARD_"
_CONNECTIONS: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"})
_CACHE_VARIABLES: Final = frozenset({"HF_HUB_CACHE", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"})


def _is_of_hub(name: str) -> bool:
    """Whether a deployment's variable says how its hub is reached. Others are its server's alone."""
    return name.startswith(("HF_", "HUGGING_FACE_")) or name.upper() in _CONNECTIONS


def _child_env(env: Mapping[str, str]) -> dict[str, Any]:
    """The environment without what the child gets as its task."""
    return {name: value for name, value in env.items() if not name.startswith(_OURS) and name not in _CACHE_VARIABLES}
