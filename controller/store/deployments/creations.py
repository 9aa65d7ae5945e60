"""Deployments that are created at the same time, in one transaction.

Each transaction that notifies holds the database's one lock for that until it is on disk, so they commit one after the
other; and a creation has more round trips than the placement that it asks for. So creations that arrive while one is
being written are written together, as placements are. What is not a plain creation goes alone, as `apply.py` does it:
a deployment that exists, one with a policy or with secrets, one that is refused, and all of a transaction that failed.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from controller.domain.wanted import scales
from controller.store.access.secrets import secrets_of
from controller.store.core.database import DRIVER_ERRORS, Database
from controller.store.core.events import Actor, current_actor
from controller.store.core.notify import CHANNEL, payloads
from controller.store.core.server_sessions import ACQUIRE_TIMEOUT_S
from controller.store.deployments.apply import Applied, Judge, apply
from controller.store.deployments.names import names_of
from controller.store.deployments.specs import spec_to_json
from controller.store.views.deployments import deployments_by_uid
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.problems import ManifestError

_AT_ONCE: Final = 64
_PRESENT: Final = "select name from deployments where name = any($1) and deleted_at is null"
_CREATE: Final = """
    with wanted as materialized (
        select * from jsonb_to_recordset($1)
               as x (uid uuid, name text, spec jsonb, input_hash text, names jsonb, actor text, request_id text)),
    created as (
        insert into deployments (uid, name, generation, revision, spec)
        select uid, name, 1, 1, spec from wanted order by name),
    revised as (
        insert into revisions (deployment_uid, generation, spec, input_hash, actor, request_id)
        select uid, 1, spec, input_hash, actor, request_id from wanted),
    noted as (
        insert into events (reason, message, evidence, objects, actor, request_id, subjects)
        select 'applied', 'deployment ' || name || ' was created', '{"old_generation": null, "generation": 1}',
               array['deployment:' || uid], actor, request_id,
               jsonb_build_array(jsonb_build_object('kind', 'deployment', 'uid', uid, 'name', name))
          from wanted order by name),
    held as (
        insert into model_names (name, deployment_uid)
        select n.name, w.uid from wanted w, jsonb_array_elements_text(w.names) as n (name) order by n.name
            on conflict do nothing returning name),
    woken as materialized (
        select count(pg_notify($2, payload)) as n from unnest($3::text[]) payload)
    select (select count(*) from held) as held, n from woken"""


class _NameTakenError(Exception):
    """A name belongs to another deployment; the one that wants it is told so alone."""


@dataclass(eq=False, slots=True)
class _Creation:
    """One deployment to create, and what came of it: a view, or nothing if it goes alone."""

    name: str
    spec: DeploymentSpec
    input_hash: str
    names: Collection[str]
    actor: Actor
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    tried: bool = False
    applied: Applied | None = None


class Creations:
    """Applies deployments, those that are new together.

    Args:
        database: where.
        refusals: what a judge raises.
    """

    def __init__(self, database: Database, refusals: tuple[type[Exception], ...] = ()) -> None:
        self._database = database
        self._refusals: tuple[type[Exception], ...] = (ManifestError, *refusals)
        self._waiting: deque[_Creation] = deque()
        self._turn = asyncio.Lock()

    async def apply(
        self, name: str, spec: DeploymentSpec, *, input_hash: str, if_match: int | None, longest_window_s: float,
        judge: Judge,
    ) -> Applied:  # fmt: skip
        """As `apply.apply`, with the same arguments and errors."""
        creation = self._creation(name, spec, input_hash, judge) if not if_match else None
        if creation is not None:
            await self._create(creation)
            if creation.applied is not None:
                return creation.applied
        return await apply(
            self._database, name, spec, input_hash=input_hash, if_match=if_match, longest_window_s=longest_window_s,
            judge=judge,
        )  # fmt: skip

    def _creation(self, name: str, spec: DeploymentSpec, input_hash: str, judge: Judge) -> _Creation | None:
        """None: it goes alone."""
        if spec.utilization_policy is not None or secrets_of(spec):
            return None
        try:
            judge(name, None, spec)
            names = sorted(names_of(name, spec))
        except self._refusals:
            return None
        return _Creation(name, spec, input_hash, names, current_actor())

    async def _create(self, one: _Creation) -> None:
        """Waits for a turn, and creates what waits by then; nothing is left to do if an earlier turn took it along."""
        self._waiting.append(one)
        try:
            async with asyncio.timeout(ACQUIRE_TIMEOUT_S):
                await self._turn.acquire()
            try:
                if not one.tried:
                    await self._create_waiting()
            finally:
                self._turn.release()
        finally:
            if not one.tried:
                self._waiting.remove(one)

    async def _create_waiting(self) -> None:
        some = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
        for one in some:
            one.tried = True
        # Of two with the same name, the second one finds the first one when it goes alone.
        first = list({one.name: one for one in reversed(some)}.values())
        try:
            async with self._database.transaction() as connection:
                views = await _write(connection, sorted(first, key=lambda one: one.name))
        except (_NameTakenError, *DRIVER_ERRORS):
            return
        for one in first:
            one.applied = views.get(one.name)


async def _write(connection: Any, some: Sequence[_Creation]) -> Mapping[str, Applied]:
    present = {row["name"] for row in await connection.fetch(_PRESENT, [one.name for one in some])}
    new = [one for one in some if one.name not in present]
    if not new:
        return {}
    uids = [one.uid for one in new]
    scaled = [one.uid for one in new if scales(one.spec)]
    rows = [
        {
            "uid": one.uid,
            "name": one.name,
            "spec": spec_to_json(one.spec),
            "input_hash": one.input_hash,
            "names": list(one.names),
            "actor": one.actor.name,
            "request_id": one.actor.request_id,
        }
        for one in new
    ]
    row = await connection.fetchrow(_CREATE, rows, CHANNEL, payloads({"deployment": uids, "scaling": scaled}))
    if row["held"] < sum(len(one.names) for one in new):
        raise _NameTakenError
    return {view.name: Applied(view, "created") for view in await deployments_by_uid(connection, uids)}
