"""Fetches models before processes start: each once, for all processes that wait for it."""

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

_AT_ONCE: Final = 4  # children

Report = Callable[[str], None]
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Provided:
    """A model in the cache."""

    commit: str
    from_hub: bool  # the hub answered; else the process should not use it either
    public: bool = False  # readable without a token


@dataclass(slots=True)
class _Running:
    task: asyncio.Task["Provided"]
    waiting: list[Report] = field(default_factory=list)


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
        self.uses = CacheUses(folder, marks, in_use, lambda: [key[0] for key in self._running])
        self.room = CacheRoom(folder, limit_mib, self.uses)

    async def aclose(self) -> None:
        """Ends all fetches; fetched data stays."""
        tasks = [running.task for running in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.uses.aclose()

    @property
    def path(self) -> Path:
        return self._folder.path

    async def provide(
        self, user: str, fetch: ModelFetch, own: Mapping[str, str], stall_s: float, report: Report
    ) -> Provided:
        """Returns once the model is in the cache and this token may read it. Raises FetchError.

        Cancelling ends only the caller's wait. `user` is the process, as named in `in_use`, and `own` the deployment's
        variables, such as its token and the hub's address. `stall_s` limits the time without progress.
        """
        env = {**os.environ, **{name: value for name, value in own.items() if _is_of_hub(name)}}
        token = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN") or ""
        key = (fetch.repo, fetch.revision, token, env.get("HF_ENDPOINT", ""))
        running = self._running.get(key)
        if running is None:
            coroutine = self._fetch(key, fetch, token, _child_env(env), stall_s)
            running = self._running[key] = _Running(asyncio.create_task(coroutine, name=f"fetch {fetch.repo}"))
        running.waiting.append(report)
        try:
            await asyncio.wait([running.task])
            provided = running.task.result()
            self.uses.note(user, fetch.repo, provided.commit)
            return provided
        finally:
            running.waiting.remove(report)
            if not running.waiting:
                running.task.cancel()
                if self._running.get(key) is running:
                    del self._running[key]

    async def _fetch(
        self, key: tuple[str, ...], fetch: ModelFetch, token: str, env: Mapping[str, str], stall_s: float
    ) -> Provided:
        running = self._running[key]

        def report(text: str) -> None:
            for waiting in tuple(running.waiting):
                waiting(text)

        try:
            await asyncio.to_thread(self._folder.prepare)
            await asyncio.to_thread(self._folder.note_use, fetch.repo, time.time())
            await self.uses.mark()  # from here on no agent removes it
            return await self._from_hub_or_cache(fetch, token, env, stall_s, report)
        except OSError as error:
            fix = ""
            if isinstance(error, PermissionError):
                fix = f"; the agent's account (uid {os.geteuid()}) must be able to read, write and enter this folder"
            raise FetchError(f"{self._folder.path}: {error}{fix}", code=code_of(error)) from error
        finally:
            if self._running.get(key) is running:
                del self._running[key]

    async def _from_hub_or_cache(
        self, fetch: ModelFetch, token: str, env: Mapping[str, str], stall_s: float, report: Report
    ) -> Provided:
        if self._offline:
            commit = await self._usable(fetch, token)
            if commit is None:
                raise FetchError(
                    f"hf:{fetch.repo}@{fetch.revision} is not in the cache, and this agent is offline; fetch it while"
                    " the agent is online, or use model: path:/dir"
                )
            return Provided(commit, from_hub=False)
        try:
            return await self._fetch_from_hub(fetch, token, env, stall_s, report)
        except FetchError as error:
            if error.final and error.code != Cause.MODEL_COMMIT_GONE:
                await asyncio.to_thread(self._folder.note_refused, fetch.repo, token)
                raise
            commit = await self._usable(fetch, token)
            if commit is None:
                raise
            log.warning("not fetched, going on with the cached model", model=fetch.repo, error=str(error))
            return Provided(commit, from_hub=False)

    async def _usable(self, fetch: ModelFetch, token: str) -> str | None:
        return await asyncio.to_thread(self._folder.usable, fetch.repo, fetch.revision, token)

    async def _fetch_from_hub(
        self, fetch: ModelFetch, token: str, env: Mapping[str, str], stall_s: float, report: Report
    ) -> Provided:
        name = f"hf:{fetch.repo}"
        if self._slots.locked():
            report(f"waits to fetch {name}: {_AT_ONCE} other models are fetched")
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
            messages = await stack.enter_async_context(aclosing(child.messages()))
            text, waits, commit = "", False, ""
            async for message in messages:
                if "error" in message:
                    raise _refusal(fetch, message)
                if "done" in message:
                    return await self._note_fetched(fetch, token, message["done"], commit)
                if waits := "waits" in message:
                    text = progress.update_by_other(message["waits"], time.monotonic())
                else:
                    if "plan" in message:
                        commit = await self._begin(fetch.repo, message["plan"], progress)
                        await child.go()
                    elif "bytes" in message:
                        self.uses.wanted[fetch.repo] = progress.left(message["bytes"])
                    text = progress.update(message.get("bytes"), time.monotonic())
                if text:
                    report(text)
                    await self.uses.save()
                if progress.stalled(time.monotonic()):
                    other = " by another process of this host, which is at it" if waits else ""
                    raise FetchError(f"{name} cannot be fetched: no progress for {stall_s:g} s{other}")
        raise AssertionError("a child's messages end with an error at the latest")

    async def _begin(self, repo: str, plan: Mapping[str, Any], progress: Progress) -> str:
        """Makes room for the child's plan; returns the commit."""
        progress.plan(plan["missing"], plan["there"])
        await self.room.make(repo, plan["missing"] - plan["there"])
        await asyncio.to_thread(self._folder.note_started, repo, plan["commit"])
        return str(plan["commit"])

    async def _note_fetched(self, fetch: ModelFetch, token: str, done: Mapping[str, Any], commit: str) -> Provided:
        if done["commit"] != commit:
            raise FetchError(f"hf:{fetch.repo} cannot be fetched: another commit than planned was fetched")
        noted = (fetch.repo, fetch.revision, commit, token)
        await asyncio.to_thread(self._folder.note_fetched, *noted, is_public=done["public"], name=fetch.name)
        await asyncio.to_thread(self._folder.note_use, fetch.repo, time.time(), commit)
        return Provided(commit, from_hub=True, public=bool(done["public"]))


def _refusal(fetch: ModelFetch, message: Mapping[str, Any]) -> FetchError:
    code = next((code for code in CODES_OF_CHILD if code == message.get("code")), "")
    if code == Cause.MODEL_COMMIT_GONE and not is_commit(fetch.revision):
        code = ""
    text = f"hf:{fetch.repo} cannot be fetched: {message['error']}"
    return FetchError(text, final=bool(message.get("final")), code=code)


_OURS: Final = "GPUWARD_"
_CONNECTIONS: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"})
_CACHE_VARIABLES: Final = frozenset({"HF_HUB_CACHE", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"})


def _is_of_hub(name: str) -> bool:
    """Whether a deployment's variable is for the hub. Other variables are for its server only."""
    return name.startswith(("HF_", "HUGGING_FACE_")) or name.upper() in _CONNECTIONS


def _child_env(env: Mapping[str, str]) -> dict[str, Any]:
    """The environment without the values that the child gets in its task."""
    return {name: value for name, value in env.items() if not name.startswith(_OURS) and name not in _CACHE_VARIABLES}
