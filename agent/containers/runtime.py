"""The containers of one agent: pulls their images, starts, adopts, and removes strays."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import structlog

from agent.containers.container import Container, ContainerStart
from agent.containers.docker_engine import DockerAwayError, DockerEngine, DockerRefusalError
from agent.containers.image_pull import provide_image
from agent.containers.log_copy import LogCopy
from agent.containers.model_folders import ClosedPlaces, linked_folders, refused_model
from agent.decide.containers import (
    Place,
    container_name,
    create_config,
    digest_of,
    engines_network,
    has_bridges,
    key_of,
    network_config,
    start_error,
    visible_gpus,
)
from agent.errors import SpawnError
from agent.model_cache.hub_layout import folder_name
from agent.processes.account import Account, own_account
from agent.processes.engine_accounts import EngineAccounts
from agent.processes.folders import InstanceFolders
from agent.processes.procfs import MARK_DIR, MARK_EPOCH, MARK_INSTANCE, MARK_RANK
from agent.state.journal import Journal
from agent.state.process_records import ProcessKey, ProcessRecord
from agent.tasks import wait_first
from schemas.exit_causes import Cause
from schemas.hub import OWN_CACHE
from schemas.wire import ContainerOrder, StartOrder

SWEEP_S: Final = 30.0
_NO_BRIDGE: Final = "Docker has no bridge network here"
_INSTEAD: Final = "the container uses the host's, where it listens on 127.0.0.1"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EngineNetwork:
    """The network of a container."""

    id: str | None  # None: the host's network
    why: str = ""  # why it is the host's, unless the order requires that


class ContainerRuntime:
    """Containers on the Docker engine of this host. Without an engine, orders with containers are refused."""

    def __init__(
        self,
        engine: DockerEngine | None,
        journal: Journal,
        folders: InstanceFolders,
        cache_dir: Path,
        user: Account | None,
        accounts: EngineAccounts,
        index_of: Callable[[str], int | None],
    ) -> None:
        self._engine = engine
        self._journal = journal
        self._folders = folders
        self._cache_dir = cache_dir
        self._user = user
        self._accounts = accounts
        self._index_of = index_of
        self._finding_network = asyncio.Lock()  # each call within has a deadline

    @property
    def user(self) -> Account | None:
        """The user of all containers; None: each runs as the account of its engine."""
        return self._user

    @property
    def runs_as_engines(self) -> bool:
        return self._user is None

    async def pull(self, container: ContainerOrder, stall_s: float, report: Callable[[str], None]) -> None:
        await provide_image(self._usable(), container, stall_s, report)

    async def start(
        self,
        record: ProcessRecord,
        order: StartOrder,
        on_pid: Callable[[int, int | None], None],
        *,
        given_up: asyncio.Event,
        report: Callable[[str], object],
        offline: bool = False,
    ) -> tuple[Container, str | None] | None:
        """Creates and starts the container of a process; SpawnError if it fails, with nothing left of it.

        Args:
            record: names the process and its port.
            order: names the program, image and folders.
            on_pid: as for `Container`.
            given_up: the process shall stop. Docker is waited for only if the container may run.
            report: gets the reason for a delay of giving up.
            offline: the model is here, and the engine must not use the hub.

        Returns:
            The container, and the digest by which its image can be pulled again, if any. None: the start was given up.
        """
        prepared: list[_Prepared] = []

        async def begin() -> None:
            prepared.append(await self._prepare(record, order, offline=offline))
            await _run(prepared[0].start, order)

        await wait_first(begin(), given_up.wait())
        if not prepared:
            return None
        ready = prepared[0]
        if not ready.start.done:
            await ready.start.give_up(report)
            return None
        container = Container(self._usable(), ready.name, ready.copy, on_pid, bridge=ready.bridge, known=True)
        container.open()
        return container, ready.digest

    async def _prepare(self, record: ProcessRecord, order: StartOrder, *, offline: bool) -> "_Prepared":
        engine, container = self._usable(), order.container
        if container is None:
            raise AssertionError("the order has a container")
        if model := await asyncio.to_thread(refused_model, container.models):
            raise SpawnError(f"{model} is a folder of the host itself, which no container gets; move the model")
        closed = ClosedPlaces((self._folders.data_dir, Path(engine.address.partition("://")[2])), self._cache_dir)
        if path := await asyncio.to_thread(closed.first_of, (*container.models, *container.volumes)):
            raise SpawnError(
                f"{path} is, is in or holds a data folder of Gpuward or Docker's socket, which no container gets; "
                "choose another folder"
            )
        name = container_name(self.owner(), record.key)
        try:
            copy = await asyncio.to_thread(self._log_copy, record.key)
        except OSError as error:
            raise SpawnError(f"cannot prepare the log of {record.instance}: {error}") from error
        try:
            image = await engine.image(container.image)
            network = await self._network(engine, container)
        except DockerAwayError as error:
            raise SpawnError(f"Docker does not answer: {error}") from error
        except DockerRefusalError as error:
            raise SpawnError(f"Docker refuses: {error}") from error
        if image is None:
            raise SpawnError(f"{Cause.IMAGE_NOT_FOUND}: {container.image} is no longer on this host")
        if network.why:
            log.warning("container on the host's network", instance=record.instance, why=network.why)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(copy.append_line, network.why)
        image_id = str(image.get("Id") or container.image)
        place = await asyncio.to_thread(self._place, record, order, image_id, network=network.id, offline=offline)
        linked = await asyncio.to_thread(linked_folders, container.models, closed)
        place = replace(place, read=(*place.read, *linked))

        def config(init: bool) -> dict[str, Any]:
            return create_config(order, record.key, replace(place, init=init))

        digest = digest_of(container.image, list(image.get("RepoDigests") or ()))
        return _Prepared(ContainerStart(engine, name, config), name, copy, digest, bridge=network.id is not None)

    def adopt(self, record: ProcessRecord, on_pid: Callable[[int, int | None], None], boot_id: str) -> Container:
        """The container of a process that an earlier agent started. It finds out by itself whether it still runs."""
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
        """Removes this agent's containers without a live process in the journal. Never returns."""
        while self._engine is not None:
            if self._journal.host_state.container_owner is not None:
                with contextlib.suppress(DockerAwayError, DockerRefusalError):
                    await self._remove_strays(self._engine)
            await asyncio.sleep(SWEEP_S)
        await asyncio.Event().wait()

    def owner(self) -> str:
        """The id in labels of this agent's containers; created at its first use and kept in the journal."""
        known = self._journal.host_state.container_owner
        if known is None:
            known = secrets.token_hex(16)
            self._journal.remember(container_owner=known)
        return known

    async def _network(self, engine: DockerEngine, container: ContainerOrder) -> EngineNetwork:
        if container.host_network:
            return EngineNetwork(None)
        async with self._finding_network:
            return await engine_network(engine, self.owner())

    def _usable(self) -> DockerEngine:
        if self._engine is None:
            raise SpawnError(
                f"{Cause.RUNTIME_UNSUPPORTED}: this agent runs no containers (its setting `docker` is off)"
            )
        return self._engine

    def _place(
        self, record: ProcessRecord, order: StartOrder, image: str, *, network: str | None, offline: bool
    ) -> Place:
        key = record.key
        try:
            user = self._user or self._accounts.known(record.uid) or own_account()
            work = self._folders.work(key.instance, user)
        except OSError as error:
            raise SpawnError(f"cannot prepare the folders of {key.instance}: {error}") from error
        env = {"HOME": str(work), "PYTHONUNBUFFERED": "1"}
        read: tuple[str, ...] = ()
        if order.fetches and not order.env.keys() & OWN_CACHE:
            env["HF_HUB_CACHE"] = str(self._cache_dir)
            read = tuple(str(self._cache_dir / folder_name(fetch.repo)) for fetch in order.fetches)
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
            user=f"{user.uid}:{user.gid}",
            groups=tuple(map(str, user.groups)),
            work=work,
            port=record.port,
            network=network,
            env=env,
            read=read,
        )

    async def _remove_strays(self, engine: DockerEngine) -> None:
        containers = await engine.list_of(self.owner())
        # After the list, so that a new container does not count as a stray.
        live = {record.key for record in self._journal.live()}
        for container in containers:
            key = key_of(container["labels"])
            if key is None or key not in live:
                log.warning("stray container removed", container=container["name"])
                await engine.remove(container["name"])

    def _log_copy(self, key: ProcessKey) -> LogCopy:
        return LogCopy(self._folders.log(key), self._folders.index(key))


@dataclass(frozen=True, slots=True)
class _Prepared:
    start: ContainerStart
    name: str
    copy: LogCopy
    digest: str | None
    bridge: bool


async def _run(start: ContainerStart, order: StartOrder) -> None:
    """Raises SpawnError if the start failed."""
    image = order.container.image if order.container else ""
    try:
        await start.run()
    except DockerRefusalError as error:
        raise SpawnError(start_error((order.argv or ("",))[0], image, str(error))) from error
    except DockerAwayError as error:
        raise SpawnError(f"Docker did not answer while the container was started: {error}") from error


async def engine_network(engine: DockerEngine, owner: str) -> EngineNetwork:
    """The network for a container, created if it is missing. Concurrent calls could create two.

    Docker's own bridge and the host's network are no substitutes: there engines reach one another.
    """
    networks = await engine.networks()
    if not has_bridges(networks):
        return EngineNetwork(None, f"{_NO_BRIDGE}: {_INSTEAD}")
    known = engines_network(networks)
    if known is None:
        taken = {str(network.get("Name")) for network in networks}
        await engine.create_network(network_config(owner, taken))
        known = engines_network(await engine.networks())
    if known is None:
        raise DockerRefusalError(0, "it has made no network for engines")
    return EngineNetwork(known)
