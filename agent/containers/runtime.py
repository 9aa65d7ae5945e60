"""The containers of one agent: pulls their images, starts, finds again, and removes what it no longer knows."""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from agent.clock import boot_clock
from agent.containers.container import Container
from agent.containers.docker_engine import DockerAwayError, DockerEngine, DockerRefusalError
from agent.containers.log_copy import LogCopy
from agent.containers.model_folders import linked_folders, refused_model
from agent.containers.registry_login import stored_login
from agent.decide.containers import (
    Place,
    container_name,
    create_config,
    digest_of,
    key_of,
    lacks_init,
    pull_error,
    registry_of,
    start_error,
    visible_gpus,
)
from agent.decide.pulls import PullWords
from agent.errors import SpawnError
from agent.journal import Journal
from agent.model_cache.cache_folder import folder_name
from agent.model_cache.progress import Progress
from agent.process_records import ProcessKey, ProcessRecord
from agent.processes.folders import InstanceFolders
from agent.processes.procfs import MARK_DIR, MARK_EPOCH, MARK_INSTANCE, MARK_RANK
from agent.rare_log import RareLog
from schemas.exit_causes import Cause
from schemas.hub import OWN_CACHE
from schemas.wire import PULLING, ContainerOrder, StartOrder

SWEEP_S: Final = 30.0
_RETRY_S: Final = 1.0
_CONFLICT: Final = 409
_NO_BRIDGE: Final = "Docker has no bridge network here: the container uses the host's, where it listens on 127.0.0.1"

log = structlog.get_logger()


class ContainerRuntime:
    """Containers on the Docker engine of this host.

    Args:
        engine: the Docker engine; None: containers are switched off.
        journal: of the agent; it keeps the id that labels name.
        folders: of the instances.
        cache_dir: where models of the hub are.
        index_of: a GPU's present index on this host.
    """

    def __init__(
        self,
        engine: DockerEngine | None,
        journal: Journal,
        folders: InstanceFolders,
        cache_dir: Path,
        index_of: Callable[[str], int | None],
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._folders = folders
        self._cache_dir = cache_dir
        self._index_of = index_of
        self._rare = RareLog(log, boot_clock)

    async def pull(self, container: ContainerOrder, stall_s: float, tell: Callable[[str], None]) -> None:
        """Returns once the image is on this host. Cancelling it ends the pull; layers that are whole stay.

        Args:
            container: names the image.
            stall_s: how long the pull may make no progress.
            tell: is told of progress, in words.

        Raises:
            SpawnError: it cannot be had.
        """
        engine, reference = self._usable(), container.image
        try:
            if container.pull != "always" and await engine.image(reference) is not None:
                return
            if container.pull == "never":
                raise SpawnError(f"{Cause.IMAGE_NOT_FOUND}: {reference} is not on this host, and `pull` is `never`")
            await self._pull(engine, reference, stall_s, tell)
            if await engine.image(reference) is None:
                raise SpawnError(pull_error(reference, "the pull ended before the image was whole"))
        except DockerAwayError as error:
            raise SpawnError(f"{Cause.IMAGE_PULL_FAILED}: {reference}: Docker does not answer: {error}") from error
        except DockerRefusalError as error:
            raise SpawnError(pull_error(reference, str(error))) from error

    async def start(
        self,
        record: ProcessRecord,
        order: StartOrder,
        on_pid: Callable[[int, int | None], None],
        *,
        offline: bool = False,
    ) -> tuple[Container, str | None]:
        """Creates and starts the container of a process; returns it with the digest of its image.

        Args:
            record: names the process and its port.
            order: what to run.
            on_pid: as of `Container`.
            offline: the hub is away, and the model is here.

        Returns:
            The container, and the digest by which its image can be pulled again; None: it has none.

        Raises:
            SpawnError: it did not start, and nothing of it is left.
        """
        engine, container = self._usable(), order.container
        if container is None:
            raise AssertionError("the order has a container")
        if model := await asyncio.to_thread(refused_model, container.models):
            raise SpawnError(f"{model} is a folder of the host itself, which no container gets; move the model")
        name = container_name(self.owner(), record.key)
        try:
            copy = await asyncio.to_thread(self._log_copy, record.key)
        except OSError as error:
            raise SpawnError(f"cannot prepare the log of {record.instance}: {error}") from error
        try:
            image = await engine.image(container.image)
            bridge = not container.host_network and await engine.has_bridge()
        except (DockerAwayError, DockerRefusalError) as error:
            raise SpawnError(f"Docker does not answer: {error}") from error
        if image is None:
            raise SpawnError(f"{Cause.IMAGE_NOT_FOUND}: {container.image} is no longer on this host")
        if not bridge and not container.host_network:
            log.warning("container on the host's network", instance=record.instance, why=_NO_BRIDGE)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(copy.say, _NO_BRIDGE)
        place = self._place(record, order, str(image.get("Id") or container.image), bridge=bridge, offline=offline)
        linked = await asyncio.to_thread(linked_folders, container.models)
        place = replace(place, read=(*place.read, *linked))
        try:
            await self._create_and_start(engine, name, order, record.key, place)
        except DockerRefusalError as error:
            await self._remove_for_certain(engine, name)
            program = (order.argv or ("",))[0]
            raise SpawnError(start_error(program, container.image, str(error))) from error
        except DockerAwayError as error:  # whether it runs is unknown
            await self._remove_for_certain(engine, name)
            raise SpawnError(f"Docker did not answer while the container was started: {error}") from error
        started = Container(engine, name, copy, on_pid, bridge=bridge, known=True)
        started.open()
        return started, digest_of(container.image, list(image.get("RepoDigests") or ()))

    def adopt(self, record: ProcessRecord, on_pid: Callable[[int, int | None], None], boot_id: str) -> Container:
        """The container of a process that an earlier agent started; whether it still is, it tells itself."""
        engine = self._engine or DockerEngine("unix:///var/run/docker.sock")
        name = container_name(self.owner(), record.key)
        copy = self._log_copy(record.key)
        on_host = (
            record.order is not None and record.order.container is not None and record.order.container.host_network
        )
        container = Container(
            engine, name, copy, on_pid, bridge=not on_host, known=False, earlier_boot=record.boot_id != boot_id
        )
        container.open(record.pid, record.pid_start_ticks)
        return container

    async def sweep(self) -> None:
        """Removes containers with this agent's label of which the journal knows no live process. Never returns."""
        while self._engine is not None:
            if self._journal.facts.container_owner is not None:
                with contextlib.suppress(DockerAwayError, DockerRefusalError):
                    await self._remove_strays(self._engine)
            await asyncio.sleep(SWEEP_S)
        await asyncio.Event().wait()

    def owner(self) -> str:
        """The id that this agent's containers carry; made at the first use and kept with its data folder."""
        known = self._journal.facts.container_owner
        if known is None:
            known = secrets.token_hex(16)
            self._journal.remember(container_owner=known)
        return known

    def _usable(self) -> DockerEngine:
        if self._engine is None:
            raise SpawnError(
                f"{Cause.RUNTIME_UNSUPPORTED}: this agent runs no containers (its setting `docker` is off)"
            )
        return self._engine

    async def _pull(self, engine: DockerEngine, reference: str, stall_s: float, tell: Callable[[str], None]) -> None:
        words, progress = PullWords(), Progress(reference, stall_s, time.monotonic(), PULLING.strip())
        login = await asyncio.to_thread(stored_login, registry_of(reference))
        tell(f"{PULLING}{reference}")
        moved_s, before = time.monotonic(), (0, "")
        async with contextlib.aclosing(engine.pull(reference, login, stall_s)) as said:
            while True:
                try:
                    async with asyncio.timeout(max(0.0, moved_s + stall_s - time.monotonic())):
                        word = await anext(said)
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    text = f"{Cause.IMAGE_PULL_FAILED}: {reference}: no progress for {stall_s:g} s"
                    raise SpawnError(text) from error
                now = (words.there, f"{word.get('status')}{word.get('progressDetail')}{word.get('id')}")
                if words.take(word) and now != before:
                    moved_s, before = time.monotonic(), now
                progress.expect(words.total)
                if told := progress.told(words.there, time.monotonic()):
                    tell(told)

    def _place(self, record: ProcessRecord, order: StartOrder, image: str, *, bridge: bool, offline: bool) -> Place:
        key = record.key
        try:
            work = self._folders.work(key.instance)
        except OSError as error:
            raise SpawnError(f"cannot prepare the folders of {key.instance}: {error}") from error
        env = {"HOME": str(work), "PYTHONUNBUFFERED": "1"}
        read: tuple[str, ...] = ()
        if order.fetches and not order.env.keys() & OWN_CACHE:
            env["HF_HUB_CACHE"] = str(self._cache_dir)
            read = tuple(str(self._cache_dir / folder_name(one.repo)) for one in order.fetches)
        if offline:
            env["HF_HUB_OFFLINE"] = "1"
        env |= order.env
        env |= visible_gpus(order, self._index_of)
        env[MARK_DIR] = str(self._folders.data_dir)
        env[MARK_INSTANCE], env[MARK_EPOCH], env[MARK_RANK] = key.instance, str(key.epoch), str(key.rank)
        if record.port is not None:
            env["GPUWARD_PORT"] = str(record.port)
        return Place(
            owner=self.owner(),
            image=image,
            user=f"{os.geteuid()}:{os.getegid()}",
            groups=tuple(str(group) for group in os.getgroups() if group != os.getegid()),
            work=work,
            port=record.port,
            bridge=bridge,
            env=env,
            read=read,
        )

    async def _create_and_start(
        self,
        engine: DockerEngine,
        name: str,
        order: StartOrder,
        key: ProcessKey,
        place: Place,
    ) -> None:
        for init in (True, False):
            config = create_config(order, key, replace(place, init=init))
            try:
                await self._create(engine, name, config)
                await engine.start(name)
            except DockerRefusalError as error:
                if not (init and lacks_init(str(error))):
                    raise
                await self._remove_for_certain(engine, name)
            else:
                return

    async def _create(self, engine: DockerEngine, name: str, config: dict[str, Any]) -> None:
        try:
            await engine.create(name, config)
        except DockerRefusalError as error:
            if error.status != _CONFLICT:
                raise
            await self._remove_for_certain(engine, name)  # of this very process, from an agent that was killed
            await engine.create(name, config)

    async def _remove_for_certain(self, engine: DockerEngine, name: str) -> None:
        """Returns only once Docker says that there is no such container: until then it may hold GPUs."""
        while True:
            try:
                await engine.remove(name)
                if await engine.inspect(name) is None:
                    return
            except (DockerAwayError, DockerRefusalError) as error:
                self._rare.warning("container not removed", cause=name, container=name, error=str(error))
            await asyncio.sleep(_RETRY_S)

    async def _remove_strays(self, engine: DockerEngine) -> None:
        found = await engine.list_of(self.owner())
        live = {record.key for record in self._journal.live()}  # read after the list: what is new is not in it
        for one in found:
            key = key_of(one["labels"])
            if key is None or key not in live:
                log.warning("stray container removed", container=one["name"])
                await engine.remove(one["name"])

    def _log_copy(self, key: ProcessKey) -> LogCopy:
        return LogCopy(self._folders.log(key))
