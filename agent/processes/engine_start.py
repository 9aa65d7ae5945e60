"""Starts one process: gets its models and its image, then runs it on the host or in a container."""

import asyncio
import os
from typing import Final

import structlog

from agent.errors import SpawnError
from agent.model_cache.snapshot_args import with_snapshots
from agent.process_records import name_of
from agent.processes.account import Account
from agent.processes.kept_record import KeptRecord
from agent.processes.process_context import ProcessContext
from agent.processes.process_group import ProcessGroup
from agent.processes.procfs import group_members, start_ticks
from agent.processes.running import Running
from agent.processes.spawn import account_env, engine_argv, engine_env, spawn
from agent.redaction import secrets_of
from agent.wait_first import wait_first
from schemas.hub_commits import hub_reference
from schemas.image_names import repository_of
from schemas.wire import StartOrder

_ALLOT_LIMIT_S: Final = 30.0

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
        self._order = with_snapshots(order, context.fetches.path)
        self._context = context
        self._stopped = stopped
        self._hub_is_away = False

    async def run(self) -> Running | None:
        """Returns what runs; None: it was stopped before it ran.

        Raises:
            FetchError, SpawnError: it does not start, and nothing of it is left.
        """
        try:
            self._context.folders.keep_secrets(self._kept.key, secrets_of(self._order))
        except OSError as error:
            raise SpawnError(f"cannot prepare the folders of {self._kept.key.instance}: {error}") from error
        if self._order.fetches or self._order.container is not None:
            await wait_first(self._fetch(), self._stopped.wait())
        if self._kept.now.stop is not None:
            return None
        return await (self._start_process() if self._order.container is None else self._start_container())

    def adopt_container(self) -> Running:
        """Takes over the container that an earlier agent started, or was about to start."""
        if self._kept.now.image_digest is not None and self._kept.now.image_repository is None:
            self._kept.amend(image_repository=_repository(self._order))  # an earlier version did not keep it
        return self._context.containers.adopt(self._kept.now, self._note_pid, self._context.boot_id)

    async def _fetch(self) -> None:
        """Returns once models and image are here. Progress is reported as the message of the starting process."""
        order, fetches, user = self._order, self._context.fetches, name_of(self._kept.key)
        commits = {}
        for fetch in order.fetches:
            provided = await fetches.provide(user, fetch, order.env, order.start_timeout_s, self._kept.tell)
            if not provided.asked:
                self._hub_is_away = True
            commits[hub_reference(fetch.repo, fetch.revision)] = provided.commit
        if commits:
            self._kept.amend(model_commits=commits)
        if order.container is not None:
            await self._context.containers.pull(order.container, order.start_timeout_s, self._kept.tell)
        if self._kept.now.message:
            self._kept.tell("")

    async def _start_process(self) -> Running | None:
        account = await self._allot()
        return None if self._kept.now.stop is not None else self._spawn(account)

    async def _start_container(self) -> Running | None:
        kept = self._kept
        if self._context.containers.runs_as_engines:
            await self._allot()
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

    async def _allot(self) -> Account | None:
        """The account as which it runs. It is journalled before anything runs as it.

        Raises:
            SpawnError: there is none for it.
        """
        try:
            async with asyncio.timeout(_ALLOT_LIMIT_S), self._context.allotting:
                account = await asyncio.to_thread(self._context.accounts.allot, self._kept.key.instance)
                self._kept.amend(uid=None if account is None else account.uid)
        except OSError as error:  # TimeoutError is one
            raise SpawnError(f"no account could be chosen for {self._kept.key.instance}: {error!r}") from error
        return account

    def _note_pid(self, pid: int, ticks: int | None) -> None:
        if self._kept.now.alive:
            self._kept.amend(pid=pid, pid_start_ticks=ticks)

    def _spawn(self, account: Account | None) -> ProcessGroup:
        context, key, order = self._context, self._kept.key, self._order
        folders = context.folders
        port = context.ports.allocate() if order.needs_port else None
        self._kept.amend(port=port)  # before the start: if the agent dies in between, the next agent knows the port
        try:
            work, output = folders.work(key.instance, account), folders.log(key)
            folders.index(key).begin()
            home = work if account is None or context.accounts.shared is None else folders.home(account)
        except OSError as error:
            raise SpawnError(f"cannot prepare the folders of {key.instance}: {error}") from error
        argv = engine_argv(order, port)
        env = engine_env(
            os.environ,
            order,
            key,
            port=port,
            data_dir=folders.data_dir,
            gpu_index=context.gpu_index,
            cache_dir=context.fetches.path,
            own=None if account is None else account_env(account, home),
        )
        if self._hub_is_away:
            env.setdefault("HF_HUB_OFFLINE", "1")
        cgroup = context.cgroups.make(key, order.host_memory_mib)
        try:
            pid = spawn(argv, env, work=work, log=output, account=account)
        except SpawnError:
            if cgroup is not None:
                cgroup.remove()
            raise
        if cgroup is not None:
            try:
                for member in (pid, *group_members(pid, key, str(folders.data_dir), trust_session=True)):
                    cgroup.add(member)  # the leader first: what it starts from then on is in it by itself
            except OSError as error:
                log.warning("engine not put into its cgroup", instance=key.instance, error=str(error))
        self._kept.amend(pid=pid, pid_start_ticks=start_ticks(pid))
        log.info("process spawned", instance=key.instance, epoch=key.epoch, rank=key.rank, pid=pid, port=port)
        alone = self._kept.now.uid if context.accounts.is_of_one_instance(self._kept.now.uid) else None
        return ProcessGroup(pid, key, str(folders.data_dir), cgroup, uid=alone)


def _repository(order: StartOrder) -> str | None:
    """Where the image of its container is from; None: it has none."""
    return None if order.container is None else repository_of(order.container.image)
