"""Dispatches open commands to connected agents: in order, marked as sent before, repeated until answered."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Final, TypeAlias

import msgspec
import structlog
from msgspec.structs import replace

from controller.decide.start_needs import unmet_needs
from controller.domain.access.redaction import NOTHING_REDACTED, Redaction
from controller.domain.events import NewEvent
from controller.domain.start_receipts import seal
from controller.engines.containers import pinned
from controller.hub.reports import STRAY_RESEND_S, stop_stray_command
from controller.hub.session import Session
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.tasks import TimeSlice
from controller.store.access.audit_log import Entry, write_entries
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.secrets import StoredSecret
from controller.store.core.database import Database
from controller.store.core.events import notify, write_events
from controller.store.deployments import commands
from controller.store.deployments.commands import Answer, DueCommand, Target
from schemas.wire import RUNTIME_DOCKER, Command, StartOrder, StopOrder, explain

log = structlog.get_logger(__name__)

Secrets: TypeAlias = Callable[[Iterable[str]], Awaitable[dict[str, StoredSecret]]]

_NOT_OF_ORDER: Final = ("env_secrets", "default_image")  # fields of a stored command that are not part of the order
LIMIT: Final = 256  # commands for one worker at a time
TICK_S: Final = 1.0
POLL_S: Final = 15.0  # of all workers, because hints can be lost
ROUND_LIMIT_S: Final = 20.0
RETRY_S: Final = 1.0


class CommandNotSendableError(Exception):
    """The command cannot be sent; the text has the reason. `code`: the reason code of the refusal."""

    def __init__(self, why: str, code: str = "bad_command") -> None:
        super().__init__(why)
        self.code = code


class CommandDispatcher:
    """Dispatches for all connections.

    `secrets` returns the values of secrets by name; unknown names are absent. `images`: as in `Hub`.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        sessions: Mapping[str, Session],
        secrets: Secrets,
        images: Mapping[str, str],
        redaction: Callable[[], Redaction] = lambda: NOTHING_REDACTED,
        keys: SecretKeys = NO_KEYS,
    ) -> None:
        self._keys = keys
        self._redaction = redaction
        self._database = database
        self._clock = clock
        self._sessions = sessions
        self._secrets = secrets
        self._images = images
        self._woken: set[str] = set()
        self._more = asyncio.Event()

    def wake(self, worker_id: str | None) -> None:
        """Open commands may exist for this worker; None: for any worker."""
        if worker_id is None:
            self._woken.update(self._sessions)
        elif worker_id in self._sessions:
            self._woken.add(worker_id)
        self._more.set()

    async def run(self) -> None:
        """Dispatches until cancelled."""
        next_poll, next_check = self._clock.monotonic() + POLL_S, 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._more.wait()
            self._more.clear()
            if self._clock.monotonic() >= next_poll:
                next_poll = self._clock.monotonic() + POLL_S
                self.wake(None)
            if self._clock.monotonic() >= next_check:  # not at each hint, because it visits all connections
                next_check = self._clock.monotonic() + TICK_S
                self._wake_unanswered()
            woken, self._woken = self._woken, set()
            connected = [self._sessions[worker] for worker in sorted(woken) if worker in self._sessions]
            sessions = [session for session in connected if session.held_until is None]
            if not sessions:
                continue
            try:
                async with asyncio.timeout(ROUND_LIMIT_S):
                    await self._dispatch(sessions)
            except DATABASE_ERRORS as error:
                log.warning("commands not dispatched", workers=len(sessions), error=str(error), retry_s=RETRY_S)
                self._woken |= woken
                await self._clock.sleep(RETRY_S)

    def _wake_unanswered(self) -> None:
        now = self._clock.monotonic()
        for worker_id, session in self._sessions.items():
            if not session.unanswered and not session.strays:
                continue
            unanswered_s = now - min(session.unanswered.values(), default=now)
            strays_s = now - min(session.strays.values(), default=now)
            if unanswered_s >= commands.RESEND_AFTER_S or strays_s >= STRAY_RESEND_S:
                self._woken.add(worker_id)

    async def _dispatch(self, sessions: list[Session]) -> None:
        targets = [Target(s.worker_id, s.number, s.since) for s in sessions]
        async with self._database.transaction() as connection:
            due = await commands.take_due(connection, targets, LIMIT, self._keys)
        by_worker = {session.worker_id: session for session in sessions}
        for session in sessions:
            self._forget_old(session)
            self._repeat_strays(session, due.term)
        for command in due.commands:
            # Before anything can fail, so that an unsent command becomes due again like an unanswered one.
            by_worker[command.worker_id].unanswered[command.id] = self._clock.monotonic()
        secrets = await self._resolve(due.commands)
        await self._note_reads(due.commands, by_worker, secrets)
        exposed = cache(self._redaction().holds)  # replicas have equal variables
        turn = TimeSlice()
        for command in due.commands:
            await turn.yield_if_over()  # a large environment takes long to compose, and there may be many
            session = by_worker[command.worker_id]
            try:
                message = compose(command, due.term, secrets, self._images, exposed, due.receipt_key)
            except CommandNotSendableError as error:
                await self._refuse(session, command, error)
            else:
                session.send(message)
        for worker_id, n in Counter(command.worker_id for command in due.commands).items():
            if n == LIMIT:
                self.wake(worker_id)

    def _forget_old(self, session: Session) -> None:
        """Drops overdue ids: those commands were just taken again, answered or withdrawn."""
        limit = self._clock.monotonic() - commands.RESEND_AFTER_S
        for command_id in [id_ for id_, sent in session.unanswered.items() if sent <= limit]:
            del session.unanswered[command_id]

    def _repeat_strays(self, session: Session, term: int) -> None:
        now = self._clock.monotonic()
        for key, sent_s in list(session.strays.items()):
            if now - sent_s >= STRAY_RESEND_S:
                session.strays[key] = now
                session.send(stop_stray_command(*key, term))

    async def _resolve(self, due: Iterable[DueCommand]) -> dict[str, StoredSecret]:
        names = {name for command in due for name in _secret_names(command).values()}
        return await self._secrets(sorted(names)) if names else {}

    async def _note_reads(
        self, due: Iterable[DueCommand], sessions: Mapping[str, Session], secrets: Mapping[str, StoredSecret]
    ) -> None:
        """Records the reads of secrets in the audit log, before anything is sent."""
        entries = [
            Entry(
                actor=f"agent:{sessions[command.worker_id].name}",
                action="secret.read",
                object=f"secrets/{name}/{command.instance}",
                outcome="done",
            )
            for command in due
            for name in sorted(set(_secret_names(command).values()))
            if not unmet_needs(_deployment(command), {"": name}, secrets)
        ]
        if entries:
            async with self._database.transaction() as connection:
                await write_entries(connection, entries)

    async def _refuse(self, session: Session, command: DueCommand, error: CommandNotSendableError) -> None:
        """Refuses a command on behalf of the agent."""
        why = str(error)
        async with self._database.transaction() as connection:
            if command.sent_before:  # it may have started its process, so its claims must stay: it is tried again
                deployments = set()
            else:
                refusal = Answer(command.id, command.worker_id, "refused", error.code, why)
                deployments = await commands.write_answers(connection, [refusal])
                session.unanswered.pop(command.id, None)
            objects = (f"instance:{command.instance}", f"worker:{command.worker_id}")
            await write_events(connection, [NewEvent("order_not_sent", why, objects, {"command": command.id})])
            await notify(connection, "process", deployments)


def _secret_names(command: DueCommand) -> dict[str, str]:
    """The names of secrets, by environment variable."""
    names = command.payload.get("env_secrets", {}) if command.verb == "start" else {}
    return names if isinstance(names, dict) else {}


def _deployment(command: DueCommand) -> str:
    return str(command.payload.get("deployment", ""))


def compose(
    command: DueCommand,
    term: int,
    secrets: Mapping[str, StoredSecret],
    images: Mapping[str, str] | None = None,
    exposed: Callable[[str], bool] = NOTHING_REDACTED.holds,
    receipt_key: bytes | None = b"",
) -> Command:
    """The message for a command.

    Args:
        command: to send.
        term: of the leader.
        secrets: by name.
        images: by engine, if they differ from the default images.
        exposed: whether a text holds a secret's value. Variables with such plain texts are kept out of logs too.
        receipt_key: seals the receipt of a start; None: unknown, so the start gets no receipt.

    Raises:
        CommandNotSendableError: a secret is missing, unreadable or not for this deployment, the stored payload is
            invalid, or the agent knows no containers.
    """
    names = _secret_names(command)
    if needs := unmet_needs(_deployment(command), names, secrets):
        raise CommandNotSendableError(needs[0].message, needs[0].code)
    try:
        start, stop = None, None
        if command.verb == "start":
            plain = {key: value for key, value in command.payload.items() if key not in _NOT_OF_ORDER}
            env = {**plain.get("env", {}), **{variable: secrets[name].value for variable, name in names.items()}}
            held = [name for name, value in env.items() if name not in names and exposed(str(value))]
            receipt = "" if command.receipt is None or receipt_key is None else seal(command.receipt, receipt_key)
            order = msgspec.convert(
                {**plain, "env": env, "secret_env": (*names, *held), "receipt": receipt}, StartOrder, strict=False
            )
            start = _in_container(command, order, images or {})
        else:
            stop = msgspec.convert(command.payload, StopOrder, strict=False)
    except msgspec.ValidationError as error:
        raise CommandNotSendableError(f"the stored command is invalid: {explain(error)}") from error
    return Command(
        command_id=command.id,
        term=term,
        instance=command.instance,
        epoch=command.epoch,
        rank=command.rank,
        verb=command.verb,
        start=start,
        stop=stop,
    )


def _in_container(command: DueCommand, start: StartOrder, images: Mapping[str, str]) -> StartOrder:
    """The order with the image of this controller's settings, by the digest that the revision keeps.

    Raises:
        CommandNotSendableError: the agent supports no containers, and would start a process of the host.
    """
    container = start.container
    if container is None:
        return start
    if RUNTIME_DOCKER not in command.runtimes:
        raise CommandNotSendableError(
            "runtime_unsupported: the agent of this worker reports no Docker engine; see GPUWARD_AGENT_DOCKER there, "
            "or install a newer gpuward"
        )
    engine = command.payload.get("default_image", "")
    image = images.get(engine, container.image)
    if container.pull != "never":  # else it is a local image of each host, and no registry knows its digest
        image = pinned(image, command.image_digests, of_settings=bool(engine))
    return replace(start, container=replace(container, image=image))
