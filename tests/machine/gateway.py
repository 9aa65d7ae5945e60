"""The gateway of the ledger machine, which tells what a test makes it tell, and what users ask of rollouts."""

from contextlib import suppress
from typing import Any, Final

from controller.live.demand import DemandReports, GatewayLoad, RevisionCount
from controller.store.core.refusals import RefusedError
from controller.store.deployments import rollouts, verbs
from machine.faults import StruckDatabase
from schemas.manifest.problems import ManifestError

KEPT_AWAKE_S: Final = 20.0
_UID: Final = "select uid::text from deployments where name = $1 and deleted_at is null"
_ATTEMPT: Final = "select revision, attempt from rollouts where deployment_uid = $1::uuid and revision is not null"
_EVENTS: Final = """
    select reason, count(*) from events
     where reason like 'rollout%' or reason in ('woken', 'wake_withdrawn', 'asleep') group by 1"""


class Gateway:
    """One gateway process: its demand by deployment, and its reports. `silent`: it tells nothing."""

    def __init__(self, database: StruckDatabase) -> None:
        self._database = database
        self._reports = DemandReports(database, "p")
        self._loads: dict[str, GatewayLoad] = {}
        self._arrived = 0
        self.silent = False

    async def tell(self) -> None:
        """A report."""
        if not self.silent:
            await self._reports.report(self._loads)

    async def has(self, name: str, *, in_flight: int = 0, waiting: int = 0) -> None:
        """From now on so many requests for the model are in flight, and so many wait and want it to wake."""
        uid = await self._uid(name)
        if uid is None:
            return
        self._arrived += in_flight + waiting
        self._loads[uid] = GatewayLoad(float(in_flight + waiting), in_flight, waiting, self._arrived)
        if waiting:
            await self._reports.wake(uid, f"request-{self._arrived}")
        else:
            await self._reports.withdraw(uid)
        await self.tell()

    async def rest(self) -> None:
        """No request is left anywhere."""
        self.silent = False
        for uid, load in self._loads.items():
            self._loads[uid] = GatewayLoad(0.0, 0, 0, load.arrived)
            await self._reports.withdraw(uid)
        await self.tell()

    async def blames(self, name: str) -> None:
        """All requests to the revision that is rolled out have failed."""
        uid = await self._uid(name)
        async with self._database.connection() as connection:
            row = await connection.raw.fetchrow(_ATTEMPT, uid) if uid is not None else None
        if row is not None and uid is not None:
            await self._reports.report({}, [RevisionCount(uid, row["revision"], row["attempt"], 100, 100)])

    async def _uid(self, name: str) -> str | None:
        async with self._database.connection() as connection:
            return await connection.raw.fetchval(_UID, name)


async def ask(database: StruckDatabase, verb: str, name: str) -> None:
    """What a user asks of a rollout, or of a model that sleeps."""
    with suppress(RefusedError, ManifestError):  # an older revision may not fit the fields that stay
        match verb:
            case "pause":
                await rollouts.pause(database, name)
            case "resume":
                await rollouts.resume(database, name)
            case "undo":
                await verbs.undo(database, name, None)
            case "wake":
                await verbs.wake(database, name, KEPT_AWAKE_S)


async def count_events(database: StruckDatabase, tally: Any) -> None:
    """Adds the events of rollouts, wakes and sleeps to the tally."""
    async with database.connection() as connection:
        for row in await connection.raw.fetch(_EVENTS):
            tally[row["reason"].replace("_", " ")] += row["count"]
