"""Starts one process: fetches its models and image, then runs it on the host or in a container."""

import asyncio
import os
from pathlib import Path
from typing import Final

import structlog

from agent.decide.engine_environment import lacks_token, passed_on
from agent.errors import ProgramMissingError, SpawnError
from agent.logs.redaction import secrets_of
from agent.model_cache.hub_layout import with_snapshots
from agent.processes.account import Account, own_account
from agent.processes.engine_launch import EngineLaunch
from agent.processes.engine_parent import EndRecord
from agent.processes.kept_record import KeptRecord
from agent.processes.process_context import ProcessContext
from agent.processes.process_group import ProcessGroup
from agent.processes.running import Running
from agent.processes.spawn import account_env, engine_argv, engine_env
from agent.state.process_records import name_of
from agent.tasks import wait_first
from schemas.hub import hub_reference
from schemas.image_names import repository_of
from schemas.wire import StartOrder

_ALLOT_LIMIT_S: Final = 30.0

log = structlog.get_logger()


class EngineStart:
    """The start of one process."""

    def __init__(self, kept: KeptRecord, order: StartOrder, context: ProcessContext, stopped: asyncio.Event) -> None:
        self._kept = kept
        self._order = with_snapshots(order, context.fetches.path)
        self._context = context
        self._stopped = stopped
        self._keeps_off_hub = False  # its models are here, and the hub would refuse it

    async def run(self) -> Running | None:
        """None if it was stopped before it ran. Raises FetchError or SpawnError, with nothing left of it."""
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
        if self._kept.now.image_digest is not None and self._kept.now.image_repository is None:
            self._kept.amend(image_repository=_repository(self._order))  # missing in records of an earlier version
        return self._context.containers.adopt(self._kept.now, self._note_pid, self._context.boot_id)

    async def _fetch(self) -> None:
        """Fetches models and image. The process's message reports progress."""
        order, fetches, user = self._order, self._context.fetches, name_of(self._kept.key)
        commits = {}
        for fetch in order.fetches:
            provided = await fetches.provide(user, fetch, order.env, order.start_timeout_s, self._kept.report_progress)
            if not provided.from_hub or self._is_refused_by_hub(public=provided.public):
                self._keeps_off_hub = True
            commits[hub_reference(fetch.repo, fetch.revision)] = provided.commit
        if commits:
            self._kept.amend(model_commits=commits)
        if order.container is not None:
            await self._context.containers.pull(order.container, order.start_timeout_s, self._kept.report_progress)
        if self._kept.now.message:
            self._kept.report_progress("")

    def _is_refused_by_hub(self, *, public: bool) -> bool:
        """Whether the hub would refuse the process a model that the agent has fetched with its own token."""
        own = passed_on(os.environ, self._context.engine_environment) if self._order.container is None else {}
        env = own | self._order.env
        # A mirror may report a model as public, and yet refuse requests without a token.
        return lacks_token(env) and (not public or ("HF_ENDPOINT" in env and not lacks_token(os.environ)))

    async def _start_process(self) -> Running | None:
        account = await self._allot()
        return None if self._kept.now.stop is not None else await self._launch(account)

    async def _start_container(self) -> Running | None:
        kept = self._kept
        user = self._context.containers.user
        if self._context.containers.runs_as_engines:
            user = await self._allot()
        mounted = [] if self._order.container is None else [Path(path) for path in self._order.container.models]
        await self._refuse_unreadable(user or own_account(), mounted, [], mounted=True)
        kept.amend(port=self._context.ports.allocate() if self._order.needs_port else None)
        started = await self._context.containers.start(
            kept.now,
            self._order,
            self._note_pid,
            given_up=self._stopped,
            report=kept.report_for_now,
            offline=self._keeps_off_hub,
        )
        if started is None:
            return None
        container, digest = started
        kept.amend(image_digest=digest, image_repository=_repository(self._order))
        log.info("container started", instance=kept.key.instance, epoch=kept.key.epoch, port=kept.now.port)
        return container

    async def _allot(self) -> Account | None:
        """The account of the process, journalled before its use. Raises SpawnError."""
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

    async def _launch(self, account: Account | None) -> ProcessGroup | None:
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
        await self._check_paths(account, work)
        argv = engine_argv(order, port)
        env = engine_env(
            os.environ,
            order,
            key,
            port=port,
            data_dir=folders.data_dir,
            gpu_index=context.inventory.index_of,
            cache_dir=context.fetches.path,
            own=None if account is None else account_env(account, home),
            listed=context.engine_environment,
        )
        if self._keeps_off_hub:
            env.setdefault("HF_HUB_OFFLINE", "1")
        record = folders.end(key)
        async with EngineLaunch(argv, env, work=work, log=output, record=record, account=account) as launch:
            try:
                return await self._run_launched(launch, record)
            except ProgramMissingError:
                context.inventory.note_missing(argv[0])
                raise

    async def _check_paths(self, account: Account | None, work: Path) -> None:
        """Raises SpawnError if the engine's account cannot reach the engine's files or working folder."""
        order = self._order
        reads = [Path(path) for path in order.reads]
        enters = [work, *([self._context.fetches.path] if order.fetches else [])]
        await self._refuse_unreadable(account or own_account(), reads, enters)

    async def _refuse_unreadable(
        self, account: Account, reads: list[Path], enters: list[Path], *, mounted: bool = False
    ) -> None:
        why = await self._context.path_checks.why_unreadable(account, reads=reads, enters=enters, mounted=mounted)
        if why:
            raise SpawnError(why)

    async def _run_launched(self, launch: EngineLaunch, record: Path) -> ProcessGroup | None:
        """Journals the pid before the engine runs, so that a later agent finds it after a crash of this agent."""
        context, key = self._context, self._kept.key
        alone = self._kept.now.uid if context.accounts.is_of_one_instance(self._kept.now.uid) else None
        cgroup, folder = context.cgroups.make(key, self._order.host_memory_mib), str(context.folders.data_dir)
        end = EndRecord(record, launch.pid, launch.start_ticks)
        try:
            group = ProcessGroup(launch.pid, key, folder, cgroup, uid=alone, parent=launch.parent, record=end)
        except OSError as error:
            launch.parent.close()
            raise SpawnError(f"cannot watch the process of {key.instance}: {error}") from error
        try:
            self._keep_pids(launch)
            self._put_into_cgroup(group)
            if self._kept.now.stop is None:
                await launch.go()
        except SpawnError:
            await self._discard(launch, group)
            raise
        except BaseException:
            group.close()
            raise
        if self._kept.now.stop is not None and launch.waits:
            await self._discard(launch, group)
            return None
        port = self._kept.now.port
        log.info("process spawned", instance=key.instance, epoch=key.epoch, rank=key.rank, pid=launch.pid, port=port)
        return group

    def _keep_pids(self, launch: EngineLaunch | None) -> None:
        self._kept.amend(
            pid=None if launch is None else launch.pid,
            pid_start_ticks=None if launch is None else launch.start_ticks,
            parent_pid=None if launch is None else launch.parent.pid,
            parent_start_ticks=None if launch is None else launch.parent.start_ticks,
        )

    def _put_into_cgroup(self, group: ProcessGroup) -> None:
        if group.cgroup is None:
            return
        try:
            group.cgroup.add(group.pid)
        except OSError as error:
            log.warning("engine not put into its cgroup", instance=self._kept.key.instance, error=str(error))

    async def _discard(self, launch: EngineLaunch, group: ProcessGroup) -> None:
        """Ends the waiting process, then its parent."""
        launch.close()
        await launch.parent.release()
        await group.forget()
        group.close()
        self._keep_pids(None)


def _repository(order: StartOrder) -> str | None:
    """The repository of the container's image."""
    return None if order.container is None else repository_of(order.container.image)
