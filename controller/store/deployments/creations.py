"""Creations of deployments, written together where they arrive together.

Transactions that notify commit one after the other, since they hold the database's one lock for that until they are on
disk. So creations that arrive while another is being written are written together. All else is applied alone, by
`apply.py`: a deployment that exists, has a policy or secrets, or is refused, and those of a transaction that failed.
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
    """A name belongs to another deployment. Each deployment is then applied alone, which names the problem."""


@dataclass(eq=False, slots=True)
class _Creation:
    """A deployment to create. `applied` stays None if it must be applied alone."""

    new: NewDeployment
    tried: bool = False
    applied: Applied | None = None


class Creations:
    """Applies deployments, new ones together."""

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

    async def _create(self, creation: _Creation) -> None:
        """Waits for a turn, and creates all that wait by then. An earlier turn may have created this one too."""
        self._waiting.append(creation)
        try:
            async with asyncio.timeout(ACQUIRE_TIMEOUT_S):
                await self._turn.acquire()
            try:
                if not creation.tried:
                    await self._create_waiting()
            finally:
                self._turn.release()
        finally:
            if not creation.tried:
                self._waiting.remove(creation)

    async def _create_waiting(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
        for creation in batch:
            creation.tried = True
        # Of two with the same name, the second is applied alone, and finds the first.
        first = list({creation.new.name: creation for creation in reversed(batch)}.values())
        try:
            async with self._database.transaction() as connection:
                views = await _write(connection, sorted((creation.new for creation in first), key=lambda new: new.name))
        except (_NameTakenError, *DRIVER_ERRORS):
            return
        for creation in first:
            creation.applied = views.get(creation.new.name)


async def _write(connection: Any, wanted: Sequence[NewDeployment]) -> Mapping[str, Applied]:
    present = {row["name"] for row in await connection.fetch(_PRESENT, [deployment.name for deployment in wanted])}
    new = [deployment for deployment in wanted if deployment.name not in present]
    if not new:
        return {}
    held = await create_all(connection, new)
    if len(held) < sum(len(deployment.names) for deployment in new):
        raise _NameTakenError
    views = await deployments_by_uid(connection, [deployment.uid for deployment in new])
    return {view.name: Applied(view, "created") for view in views}
