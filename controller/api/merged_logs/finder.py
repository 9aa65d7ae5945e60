"""Finds the logs that a client selects, and makes the query for their agents."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from controller.api.errors import ApiError
from controller.api.merged_logs.merge import MOST_LOGS, Key
from controller.api.parameters import flag, integer, time_or_age
from controller.store.core.database import Database
from controller.store.core.refusals import NotFoundError
from controller.store.views.logs import DeploymentLogs, InstanceLog, check_instances, deployment_logs, earlier_logs

MAX_TAIL: Final = 1_000_000
MOST_RANK: Final = 65_535


def agent_query(parameters: Mapping[str, str], *, timed: bool = False) -> dict[str, str]:
    """The query for an agent. It compares `since` with its own clock.

    Raises:
        ApiError: 400, an invalid parameter.
    """
    tail = integer(parameters, "tail", low=0, high=MAX_TAIL)
    query = {name: "1" for name in ("follow", "previous") if flag(parameters, name)}
    since = time_or_age(parameters, "since")
    if timed and since is not None:
        at_s = time.time() - since.total_seconds() if isinstance(since, timedelta) else since.timestamp()
        query["since_ms"] = str(max(0, int(at_s * 1000)))
    return query | ({} if tail is None else {"tail": str(tail)})


class LogFinder:
    """Finds a deployment's logs, where given only those of these instances and of this rank."""

    def __init__(self, database: Database, deployment: str, instances: Sequence[str], rank: int | None) -> None:
        self._database = database
        self._deployment = deployment
        self._instances = list(instances) or None
        self._rank = rank

    async def first(self) -> DeploymentLogs:
        """The present logs.

        Raises:
            NotFoundError: the deployment, or one of the named instances, does not exist.
            ApiError: 409, there are more than are merged at once.
        """
        logs = await self._find(check=True)
        if len(logs.logs) > MOST_LOGS:
            fix = f"has {len(logs.logs)} logs, at most {MOST_LOGS} are merged; name some with `instance` or one `rank`"
            raise ApiError(409, "too_many_logs", f"deployment {self._deployment!r} {fix}")
        return logs

    async def again(self) -> DeploymentLogs:
        """The logs at a later time; empty if the deployment is gone."""
        try:
            return await self._find()
        except NotFoundError:
            return DeploymentLogs((), lives=False)

    async def earlier(self, after: Iterable[Key], newest: Iterable[InstanceLog]) -> tuple[InstanceLog, ...]:
        """Of the logs that a client has started to read, those that a newer start has replaced since."""
        present = {(log.instance, log.rank): log.epoch for log in newest}
        replaced = [key for key in after if key[2] < present.get(key[:2], 0)]
        if not replaced:
            return ()
        async with self._database.snapshot() as connection:
            return await earlier_logs(connection, self._deployment, replaced)

    async def _find(self, *, check: bool = False) -> DeploymentLogs:
        async with self._database.snapshot() as connection:
            logs = await deployment_logs(connection, self._deployment, instances=self._instances, rank=self._rank)
            if check and self._instances:
                await check_instances(connection, self._deployment, self._instances)
            return logs
