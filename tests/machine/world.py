"""The world of the ledger machine: one database, two controllers, three hosts, and their actions and faults."""

import asyncio
import hashlib
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import asyncpg

from controller.hub.admission import Identification
from controller.hub.devices import write_device_change
from controller.store.core.refusals import RefusedError
from controller.store.deployments import verbs
from controller.store.workers import maintenance
from controller.store.workers.sessions import WorkerGoneError
from machine.bounds import READ, Moment, check_bounds
from machine.controllers import Controller, HandClock, Term
from machine.faults import Outcome, Strike, StruckDatabase, finish, launch
from machine.gateway import Gateway
from machine.hosts import GPU_MIB, Host, Link
from schemas.manifest.deployment import DeploymentSpec
from schemas.wire import Command, Hello
from support.builders.apply import apply_spec

Action = Callable[[], Awaitable[Any]]
GPUS_PER_HOST: Final = 2
_KEPT: Final = 4  # former terms, abandoned hellos
_EMPTY: Final = """
    delete from claims; delete from instances; delete from deployments; delete from device_readings;
    delete from gateways; delete from scaling_status; delete from devices; delete from workers; delete from events"""
DELETED: Final = """
    select d.uid, array(select (i.id, i.epoch) from instances i where i.deployment_uid = d.uid) as has
      from deployments d where d.deleted_at is not null"""
FINGERPRINT: Final = """
    select md5(concat_ws('|',
        (select string_agg(t::text, ',' order by t::text) from instances t),
        (select string_agg(t::text, ',' order by t::text) from claims t),
        (select string_agg(t::text, ',' order by t::text) from commands t),
        (select string_agg(t::text, ',' order by t::text) from deployments t),
        (select string_agg(t::text, ',' order by t::text) from revisions t),
        (select string_agg(t::text, ',' order by t::text) from workers t),
        (select string_agg(t::text, ',' order by t::text) from devices t),
        (select string_agg(t::text, ',' order by t::text) from relocations t),
        (select string_agg(t::text, ',' order by t::text) from rollouts t),
        (select string_agg(t::text, ',' order by t::text) from intents t),
        (select count(*)::text from events)))"""


class World:
    """Every public coroutine is one event."""

    def __init__(self, database: StruckDatabase, folder: Path, tally: Counter[str]) -> None:
        self.database = database
        self.tally = tally
        self.clock = HandClock()
        self.gateway = Gateway(database)
        self.controllers = [Controller(name, database, self.clock, tally) for name in ("a", "b")]
        self.hosts = [
            Host(f"w{n}", {f"GPU-{n}-{i}": GPU_MIB for i in range(GPUS_PER_HOST)}, folder / f"w{n}") for n in range(3)
        ]
        self.former_terms: list[Term] = []
        self.late: list[Link] = []  # broken connections with messages on their way
        self.dials: list[tuple[Host, str, Hello]] = []  # hellos that their senders have abandoned
        self.deleted: dict[str, set[tuple[str, int]]] = {}  # instances and epochs of each at its deletion
        self._moments: dict[str, Moment] = {}  # of each deployment, when it was looked at last

    async def begin(self) -> None:
        """An empty ledger, a leader, and all hosts ready."""
        async with self.database.connection() as connection:
            await connection.raw.execute(_EMPTY)
        await self.take_over(self.controllers[0])
        for host in self.hosts:
            await self.join(host)
            await self.connect(host, self.controllers[0])
        assert self.leader is not None
        await self.leader.step_workers()

    async def end(self) -> None:
        terms = [*self.former_terms, *(c.term for c in self.controllers if c.term is not None)]
        for term in terms:
            await term.aclose()
        for host in self.hosts:
            host.stop_agent()

    @property
    def leader(self) -> Term | None:
        """The newest term, while its controller runs."""
        return max((c.term for c in self.controllers if c.term), key=lambda t: t.number, default=None)

    async def attempt(self, action: Action, strike: Strike | None = None) -> Outcome:
        """One action of a controller, struck or not."""
        strike = strike or Strike()
        outcome = await finish(launch(action, strike), strike)
        self.tally[f"outcome {outcome}"] += 1
        if strike.struck:
            self.tally["crashes"] += 1
        return outcome

    async def interleave(self, first: Action, at: int, second: Action, *, ends_term: bool = False) -> None:
        """Pauses the first before its n-th statement while the second happens; then the first goes on.

        Args:
            first: the paused action.
            at: the statement.
            second: the action meanwhile; it gives up where it would wait for the first.
            ends_term: where the second succeeds, the first must not write any more.
        """
        strike = Strike(at=at, how="pause")
        task = launch(first, strike)
        task.add_done_callback(lambda _: strike.paused.set())
        await strike.paused.wait()
        try:
            outcome = await self.attempt(second, Strike(impatient=True))
            if not strike.writing:  # else it may commit what it has checked, but nothing that it begins now
                await self.note_deleted()
            before = await self.fingerprint() if ends_term and outcome == "done" else None
        finally:
            strike.resume.set()
            await asyncio.wait({task})
        self.tally[f"outcome {await finish(task, strike)}"] += 1
        if before is not None and strike.struck:
            self.tally["takeovers in the middle of a step"] += 1
            assert before == await self.fingerprint(), "a former leader has written"

    async def fingerprint(self) -> str:
        async with self.database.connection() as connection:
            return str(await connection.raw.fetchval(FINGERPRINT))

    async def note_deleted(self) -> None:
        """Records the instances of newly deleted deployments: they may go, but none may come."""
        async with self.database.connection() as connection:
            rows = await connection.raw.fetch(DELETED)
        for row in rows:
            self.deleted.setdefault(str(row["uid"]), {(id_, epoch) for id_, epoch in row["has"]})

    async def check_bounds(self) -> None:
        """Compares each deployment with what it was at the last look."""
        async with self.database.connection() as connection:
            rows = await connection.raw.fetch(READ)
        moments = {row["uid"]: Moment.read(row) for row in rows}
        for uid, moment in moments.items():
            if (before := self._moments.get(uid)) is not None:
                check_bounds(before, moment)
        self._moments = moments

    # Users and operators

    async def apply(self, name: str, spec: DeploymentSpec) -> None:
        await apply_spec(self.database, name, spec)

    async def user(self, verb: str, name: str, replicas: int) -> None:
        with suppress(RefusedError):
            match verb:
                case "delete":
                    await verbs.delete(self.database, name)
                case "scale":
                    await verbs.scale(self.database, name, replicas, replicas)
                case "stop":
                    await verbs.stop(self.database, name)
                case "start":
                    await verbs.start(self.database, name)

    async def operator(self, verb: Any, host: Host) -> None:
        with suppress(RefusedError):
            await maintenance.set_maintenance(self.database, host.name, verb)

    async def delete_worker(self, host: Host, *, confirm_dead: bool) -> None:
        assert not (confirm_dead and host.powered), "an operator confirms the death of dead hosts only"
        with suppress(RefusedError):
            await maintenance.delete_worker(self.database, host.name, confirm_dead=confirm_dead)
            self.tally["workers deleted"] += 1

    # Terms

    async def take_over(self, controller: Controller) -> None:
        """The lease has expired, and its former holder does not know."""
        new, old = await controller.acquire_lease(), self.leader
        if new is None:
            return
        self.tally["takeovers"] += 1
        if old is not None and old.number > new.number:  # its answer took so long
            self.former_terms.append(new)
            return
        self.former_terms += [c.term for c in self.controllers if c.term is not None]
        for other in self.controllers:
            other.term = None
        controller.term = new
        while len(self.former_terms) > _KEPT:
            await self.former_terms.pop(0).aclose()

    async def step_former_leader(self, n: int, part: str) -> None:
        """The leader of a former term goes on as before."""
        term = self.former_terms[n % len(self.former_terms)]
        before = await self.fingerprint()
        outcome = await self.attempt(getattr(term, part))
        assert before == await self.fingerprint(), f"term {term.number} has ended and has written"
        self.tally["stale terms stepped"] += 1
        self.tally["stale terms refused"] += outcome == "stale"

    async def crash(self, controller: Controller) -> None:
        """kill -9 of a controller: its connections and its memory are lost."""
        for host in self.hosts:
            if host.link is not None and host.link.controller is controller:
                host.cut()
        self.late = [link for link in self.late if link.controller is not controller]
        if controller.term is not None:
            await controller.term.aclose()
            controller.term = None
        controller.restart()
        self.tally["controllers killed"] += 1

    # Connections

    async def join(self, host: Host) -> None:
        """Inserts a row for the host, as a join with a token does."""
        host.forget_worker()
        worker = uuid.uuid4()
        try:
            async with self.database.connection() as connection:
                await connection.execute(
                    "insert into workers (id, name, credential_hash, proxy_secret) values ($1, $2, $3, 's')",
                    worker,
                    host.name,
                    hashlib.sha256(str(worker).encode()).digest(),
                )
        except asyncpg.UniqueViolationError:  # the old row exists until an operator deletes it
            return
        host.worker_id = str(worker)

    async def connect(self, host: Host, controller: Controller, strike: Strike | None = None) -> None:
        """The agent connects and sends hello; the handshake follows, unless the controller fails in it."""
        assert host.worker_id is not None
        self.drop(host, noticed=False)
        await self._greet(host, host.worker_id, host.hello(), controller, strike, keep=True)

    def abandon_hello(self, host: Host) -> None:
        """The agent sends hello and gives up before the handshake."""
        assert host.worker_id is not None
        self.drop(host, noticed=False)
        self.dials.append((host, host.worker_id, host.hello()))
        del self.dials[:-_KEPT]

    async def shake_late(self, n: int, controller: Controller) -> None:
        """A controller writes a hello that its sender has abandoned."""
        host, worker_id, hello = self.dials[n % len(self.dials)]
        self.tally["late hellos"] += 1
        await self._greet(host, worker_id, hello, controller, None, keep=False)

    async def _greet(
        self, host: Host, worker_id: str, hello: Hello, controller: Controller, strike: Strike | None, *, keep: bool
    ) -> None:
        async def greet() -> None:
            identity = await Identification(self.database).identify(worker_id)
            if identity is None or identity.deleted:
                if keep:
                    host.worker_id = None
                return
            with suppress(WorkerGoneError):
                link = await controller.greet(host, identity, hello)
                if link is None:
                    return
                if keep:
                    host.link = link
                    host.silent_s = 0.0
                else:
                    controller.hang_up(link)

        await self.attempt(greet, strike)

    async def arrive_late(self, n: int, hear: Callable[[Link], None]) -> None:
        """Messages of a broken connection arrive after all; they change nothing if a newer connection exists."""
        link = self.late.pop(n % len(self.late))
        controller = link.controller
        await self.attempt(controller.write)
        async with self.database.connection() as connection:
            newest = await connection.raw.fetchval(
                "select session from workers where id = $1::uuid and deleted_at is null", link.session.worker_id
            )
        before = await self.fingerprint()
        hear(link)
        await self.attempt(controller.write)
        host = next(h for h in self.hosts if h.name == link.session.name)
        await self.attempt(lambda: write_device_change(self.database, link.session, host.inventory()))
        if newest != link.session.number:
            assert before == await self.fingerprint(), "an ended connection has written"
            self.tally["stale sessions refused"] += 1

    def drop(self, host: Host, *, noticed: bool) -> None:
        """Breaks the connection; the hub notices at once or later."""
        link = host.cut()
        if link is None:
            return
        self.tally["messages lost"] += len(link.lost) + len(link.session._outgoing)
        host.history.extend(message for message in link.session._outgoing if isinstance(message, Command))
        if link.lost:
            self.late.append(link)
        if noticed:
            link.controller.hang_up(link)

    async def beat(self, host: Host, strike: Strike | None = None) -> None:
        """A heartbeat: the hub writes changed devices."""
        link = host.link
        if link is not None:
            await self.attempt(lambda: write_device_change(self.database, link.session, host.inventory()), strike)
