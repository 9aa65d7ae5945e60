"""Fetches models before processes start: each once, whatever number of processes waits for it."""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.cache_room import CacheRoom
from agent.model_cache.cache_uses import CacheUses, UseMarks
from agent.model_cache.fetch_errors import CODES_OF_CHILD, FetchError, code_of
from agent.model_cache.fetch_process import FetchProcess, opened_place
from agent.model_cache.progress import Progress
from schemas.exit_causes import Cause
from schemas.hub import is_commit
from schemas.wire import ModelFetch

_AT_ONCE: Final = 4  # children; others wait

Tell = Callable[[str], None]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Provided:
    """A model that is in the cache."""

    commit: str  # of its revision
    asked: bool  # the hub was asked; else the process should not ask it either
    public: bool = False  # the hub gives it to all, without a token


@dataclass(slots=True)
class _Running:
    """A fetch under way, and the processes that wait for it."""

    task: asyncio.Task["Provided"]
    waiting: list[Tell] = field(default_factory=list)


class Fetches:
    """All fetches of this agent, and its host's cache."""

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
        self._offline = offline
        self._running: dict[tuple[str, ...], _Running] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.uses = CacheUses(folder, marks, in_use, lambda: [key[0] for key in self._running])  # of the cache
        self.room = CacheRoom(folder, limit_mib, self.uses)  # what the cache holds, and what leaves it

    async def aclose(self) -> None:
        """Ends all fetches; what is fetched stays."""
        tasks = [one.task for one in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.uses.aclose()

    @property
    def path(self) -> Path:
        return self._folder.path

    async def provide(
        self, user: str, fetch: ModelFetch, own: Mapping[str, str], stall_s: float, tell: Tell
    ) -> Provided:
        """Returns once the model is in the cache and this token may read it. Cancelling it only ends the wait of one.

        Args:
            user: the process, as `in_use` names it.
            fetch: the model.
            own: the deployment's variables: its token, and how the hub is reached.
            stall_s: how long the fetch may make no progress.
            tell: gets progress, as text.

        Returns:
            Its commit, and whether the hub was asked.

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
            self.uses.note(user, fetch.repo, provided.commit)
            return provided
        finally:
            running.waiting.remove(tell)
            if not running.waiting:  # nothing waits for it any more
                running.task.cancel()
                if self._running.get(key) is running:
                    del self._running[key]

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
            await self.uses.mark()  # from here on no agent removes it
            return await self._from_hub_or_cache(fetch, token, env, stall_s, tell)
        except OSError as error:
            fix = ""
            if isinstance(error, PermissionError):
                fix = f"; the agent's account (uid {os.geteuid()}) must be able to read, write and enter this folder"
            raise FetchError(f"{self._folder.path}: {error}{fix}", code=code_of(error)) from error
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
            return await self._ask_hub(fetch, token, env, stall_s, tell)
        except FetchError as error:
            if error.final and error.code != Cause.MODEL_COMMIT_GONE:
                await asyncio.to_thread(self._folder.note_refused, fetch.repo, token)
                raise
            commit = await self._usable(fetch, token)
            if commit is None:
                raise
            log.warning("not fetched, going on with the cached model", model=fetch.repo, error=str(error))
            return Provided(commit, asked=False)

    async def _usable(self, fetch: ModelFetch, token: str) -> str | None:
        return await asyncio.to_thread(self._folder.usable, fetch.repo, fetch.revision, token)

    async def _ask_hub(
        self, fetch: ModelFetch, token: str, env: Mapping[str, str], stall_s: float, tell: Tell
    ) -> Provided:
        name = f"hf:{fetch.repo}"
        if self._slots.locked():
            tell(f"waits to fetch {name}: {_AT_ONCE} other models are fetched")
        task = {
            "repo": fetch.repo,
            "revision": fetch.revision,
            "token": token,
            "name": fetch.name,
        }
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._slots)
            async with opened_place(self._folder, fetch.repo) as place:
                child = await stack.enter_async_context(FetchProcess(task, env, place))
            stack.callback(self.uses.wanted.pop, fetch.repo, None)
            progress = Progress(name, stall_s, time.monotonic())
            said = await stack.enter_async_context(aclosing(child.words()))
            told, waits, commit = "", False, ""
            async for words in said:
                if "error" in words:
                    raise _refusal(fetch, words)
                if "done" in words:
                    return await self._note_fetched(fetch, token, words["done"], commit)
                if waits := "waits" in words:
                    told = progress.waits(words["waits"], time.monotonic())
                else:
                    if "plan" in words:
                        commit = await self._begin(fetch.repo, words["plan"], progress)
                        await child.go()
                    elif "bytes" in words:
                        self.uses.wanted[fetch.repo] = progress.left(words["bytes"])
                    told = progress.told(words.get("bytes"), time.monotonic())
                if told:
                    tell(told)
                    await self.uses.save()
                if progress.stalled(time.monotonic()):
                    other = " by another process of this host, which is at it" if waits else ""
                    raise FetchError(f"{name} cannot be fetched: no progress for {stall_s:g} s{other}")
        raise AssertionError("a child's words end with an error at the latest")

    async def _begin(self, repo: str, plan: Mapping[str, Any], progress: Progress) -> str:
        """Makes room for what the child has planned; returns the commit."""
        progress.plan(plan["missing"], plan["there"])
        await self.room.make(repo, plan["missing"] - plan["there"])
        await asyncio.to_thread(self._folder.note_begun, repo, plan["commit"])
        return str(plan["commit"])

    async def _note_fetched(self, fetch: ModelFetch, token: str, done: Mapping[str, Any], commit: str) -> Provided:
        if done["commit"] != commit:
            raise FetchError(f"hf:{fetch.repo} cannot be fetched: another commit than planned was fetched")
        noted = (fetch.repo, fetch.revision, commit, token)
        await asyncio.to_thread(self._folder.note_fetched, *noted, is_public=done["public"], name=fetch.name)
        await asyncio.to_thread(self._folder.note_use, fetch.repo, time.time(), commit)
        return Provided(commit, asked=True, public=bool(done["public"]))


def _refusal(fetch: ModelFetch, words: Mapping[str, Any]) -> FetchError:
    code = next((one for one in CODES_OF_CHILD if one == words.get("code")), "")
    if code == Cause.MODEL_COMMIT_GONE and not is_commit(fetch.revision):
        code = ""
    text = f"hf:{fetch.repo} cannot be fetched: {words['error']}"
    return FetchError(text, final=bool(words.get("final")), code=code)


_OURS: Final = "GPUWARD_"
_CONNECTIONS: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"})
_CACHE_VARIABLES: Final = frozenset({"HF_HUB_CACHE", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"})


def _is_of_hub(name: str) -> bool:
    """Whether a deployment's variable says how its hub is reached. Others are its server's alone."""
    return name.startswith(("HF_", "HUGGING_FACE_")) or name.upper() in _CONNECTIONS


def _child_env(env: Mapping[str, str]) -> dict[str, Any]:
    """The environment without what the child gets as its task."""
    return {name: value for name, value in env.items() if not name.startswith(_OURS) and name not in _CACHE_VARIABLES}
