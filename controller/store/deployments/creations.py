"""Deployments that are created at the same time, in one transaction.

Each transaction that notifies holds the database's one lock for that until it is on disk, so they commit one after the
other; and a creation has more round trips than the placement that it asks for. So creations that arrive while one is
being written are written together, as placements are. What is not a plain creation goes alone, as `apply.py` does it:
a deployment that exists, one with a policy or with secrets, one that is refused, and all of a transaction that failed.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.domain.access.grants import Power
from controller.store.core.database import DRIVER_ERRORS, Database
from controller.store.core.refusals import NotGrantedError, RetiredArgsError
from controller.store.core.server_sessions import ACQUIRE_TIMEOUT_S
from controller.store.deployments.apply import Applied, NewDeployment, apply, create_all, refuse_change
from controller.store.deployments.specs import names_of
from controller.store.views.deployments import deployments_by_uid
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.problems import ManifestError

_AT_ONCE: Final = 64
_PRESENT: Final = "select name from deployments where name = any($1) and deleted_at is null"


class _NameTakenError(Exception):
    """A name belongs to another deployment; the error names it where the deployment is created alone."""


@dataclass(eq=False, slots=True)
class _Creation:
    """One deployment to create, and what came of it: a view, or nothing if it goes alone."""

    new: NewDeployment
    tried: bool = False
    applied: Applied | None = None


class Creations:
    """Applies deployments, those that are new together.

    Args:
        database: where.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[_Creation] = deque()
        self._turn = asyncio.Lock()

    async def apply(
        self, name: str, spec: DeploymentSpec, *, input_hash: str, if_match: int | None, longest_window_s: float,
        lacks: Sequence[Power] = (),
    ) -> Applied:  # fmt: skip
        """As `apply.apply`, with the same arguments and errors."""
        creation = None
        if not if_match and spec.utilization_policy is None and not spec.secrets:
            try:
                refuse_change(name, None, spec, lacks)
                creation = _Creation(NewDeployment(name, spec, input_hash, names_of(name, spec)))
            except (ManifestError, NotGrantedError, RetiredArgsError):
                pass
        if creation is not None:
            await self._create(creation)
            if creation.applied is not None:
                return creation.applied
        return await apply(
            self._database, name, spec, input_hash=input_hash, if_match=if_match, longest_window_s=longest_window_s,
            lacks=lacks,
        )  # fmt: skip

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
        first = list({one.new.name: one for one in reversed(some)}.values())
        try:
            async with self._database.transaction() as connection:
                views = await _write(connection, sorted((one.new for one in first), key=lambda new: new.name))
        except (_NameTakenError, *DRIVER_ERRORS):
            return
        for one in first:
            one.applied = views.get(one.new.name)


async def _write(connection: Any, some: Sequence[NewDeployment]) -> Mapping[str, Applied]:
    present = {row["name"] for row in await connection.fetch(_PRESENT, [one.name for one in some])}
    new = [one for one in some if one.name not in present]
    if not new:
        return {}
    held = await create_all(connection, new)
    if len(held) < sum(len(one.names) for one in new):
        raise _NameTakenError
    views = await deployments_by_uid(connection, [one.uid for one in new])
    return {view.name: Applied(view, "created") for view in views}
