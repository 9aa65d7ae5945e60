"""A host's cache of models and what an agent fetches into it, from a hub with one model and a small second one."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.cache_uses import UseMarks
from agent.model_cache.fetches import Fetches
from agent.model_cache.hub_layout import folder_name
from schemas.wire import ModelFetch
from support.standins.download_hub import COMMIT, DownloadHub

REPO = "org/model"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": os.urandom(2_000_000),
    "pytorch_model.bin": os.urandom(1000),
    "sub/tokenizer.json": b"{}",
    "README.md": b"read me",
}
WANTED = {"config.json", "model.safetensors", "sub/tokenizer.json"}
MODEL = ModelFetch(repo=REPO)
STALL_S = 20.0
LATER = "d" * 40


class Host:
    """An agent's fetches, for one process that is named `user`."""

    def __init__(
        self,
        path: Path,
        hub: DownloadHub,
        *,
        limit_mib: int | None = None,
        offline: bool = False,
        agent: str = "a",
        boot_id: str = "boot-1",
    ) -> None:
        self.folder = CacheFolder(path)
        self.user = "i"
        self.live: dict[str, set[str]] = {}
        self.fetches = Fetches(
            self.folder,
            limit_mib=limit_mib,
            offline=offline,
            in_use=lambda: self.live,
            marks=UseMarks(self.folder.marks, agent, boot_id),
        )
        self.env = {"HF_ENDPOINT": hub.url, "LD_PRELOAD": "/its/own"}
        self.told: list[str] = []

    async def provide(self, model: ModelFetch = MODEL, token: str = "", stall_s: float = STALL_S) -> bool:
        """Fetches a model for the process; returns whether the hub was asked."""
        env = {**self.env, "HF_TOKEN": token} if token else self.env
        async with asyncio.timeout(60):
            return (await self.fetches.provide(self.user, model, env, stall_s, self.told.append)).from_hub

    async def uses(self, user: str, model: ModelFetch = MODEL) -> None:
        """A live process of this agent gets a model."""
        self.user = user
        self.live = {**self.live, user: {model.repo}}
        await self.provide(model)

    def snapshot(self, commit: str = COMMIT) -> Path:
        """The folder in which a server finds a revision of `REPO`."""
        return self.folder.path / folder_name(REPO) / "snapshots" / commit


async def until(holds: Callable[[], bool]) -> None:
    """Waits until it holds."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - the hub is a thread
            await asyncio.sleep(0.02)
