"""Starts one process: gets its models and its image, then runs it on the host or in a container."""

import asyncio
import os

import structlog

from agent.errors import SpawnError
from agent.process_records import name_of
from agent.processes.kept_record import KeptRecord
from agent.processes.process_context import ProcessContext
from agent.processes.process_group import ProcessGroup
from agent.processes.procfs import start_ticks
from agent.processes.running import Running
from agent.processes.spawn import engine_argv, engine_env, spawn
from agent.wait_first import wait_first
from schemas.image_names import repository_of
from schemas.wire import StartOrder

log = structlog.get_logger()


class EngineStart:
    """One start.

    Args:
        kept: the process's record.
        order: what to run.
        context: the agent around it.
        stopped: set when it shall stop.
    """

    def __init__(self, kept: KeptRecord, order: StartOrder, context: ProcessContext, stopped: asyncio.Event) -> None:
        self._kept = kept
        self._order = order
        self._context = context
        self._stopped = stopped
        self._hub_is_away = False

    async def run(self) -> Running | None:
        """Returns what runs; None: it was stopped before it ran.

        Raises:
            FetchError, SpawnError: it does not start, and nothing of it is left.
        """
        if self._order.fetches or self._order.container is not None:
            await wait_first(self._fetch(), self._stopped.wait())
        if self._kept.now.stop is not None:
            return None
        return self._spawn() if self._order.container is None else await self._start_container()

    def adopt_container(self) -> Running:
        """Takes over the container that an earlier agent started, or was about to start."""
        if self._kept.now.image_digest is not None and self._kept.now.image_repository is None:
            self._kept.amend(image_repository=_repository(self._order))  # an earlier version did not keep it
        return self._context.containers.adopt(self._kept.now, self._note_pid, self._context.boot_id)

    async def _fetch(self) -> None:
        """Returns once models and image are here. Progress is reported as the message of the starting process."""
        order, fetches, user = self._order, self._context.fetches, name_of(self._kept.key)
        for fetch in order.fetches:
            if not await fetches.provide(user, fetch, order.env, order.start_timeout_s, self._kept.tell):
                self._hub_is_away = True
        if order.container is not None:
            await self._context.containers.pull(order.container, order.start_timeout_s, self._kept.tell)
        if self._kept.now.message:
            self._kept.tell("")

    async def _start_container(self) -> Running | None:
        kept = self._kept
        kept.amend(port=self._context.ports.allocate() if self._order.needs_port else None)
        started = await self._context.containers.start(
            kept.now,
            self._order,
            self._note_pid,
            given_up=self._stopped,
            tell=kept.say_for_now,
            offline=self._hub_is_away,
        )
        if started is None:
            return None
        container, digest = started
        kept.amend(image_digest=digest, image_repository=_repository(self._order))
        log.info("container started", instance=kept.key.instance, epoch=kept.key.epoch, port=kept.now.port)
        return container

    def _note_pid(self, pid: int, ticks: int | None) -> None:
        if self._kept.now.alive:
            self._kept.amend(pid=pid, pid_start_ticks=ticks)

    def _spawn(self) -> ProcessGroup:
        context, key, order = self._context, self._kept.key, self._order
        folders = context.folders
        port = context.ports.allocate() if order.needs_port else None
        self._kept.amend(port=port)  # before the start: if the agent dies in between, the next agent knows the port
        argv = engine_argv(order, port)
        env = engine_env(
            os.environ,
            order,
            key,
            port=port,
            data_dir=folders.data_dir,
            gpu_index=context.gpu_index,
            cache_dir=context.fetches.path,
        )
        if self._hub_is_away:
            env.setdefault("HF_HUB_OFFLINE", "1")
        try:
            work, output = folders.work(key.instance), folders.log(key)
            folders.index(key).begin()
        except OSError as error:
            raise SpawnError(f"cannot prepare the folders of {key.instance}: {error}") from error
        cgroup = context.cgroups.make(key, order.host_memory_mib)
        try:
            pid = spawn(argv, env, work=work, log=output)
        except SpawnError:
            if cgroup is not None:
                cgroup.remove()
            raise
        if cgroup is not None:
            try:
                cgroup.add(pid)
            except OSError as error:
                log.warning("engine not put into its cgroup", instance=key.instance, error=str(error))
        self._kept.amend(pid=pid, pid_start_ticks=start_ticks(pid))
        log.info("process spawned", instance=key.instance, epoch=key.epoch, rank=key.rank, pid=pid, port=port)
        return ProcessGroup(pid, key, str(folders.data_dir), cgroup)


def _repository(order: StartOrder) -> str | None:
    """Where the image of its container is from; None: it has none."""
    return None if order.container is None else repository_of(order.container.image)
