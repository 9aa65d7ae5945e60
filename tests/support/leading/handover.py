"""Runs the lifecycle under one leader after another, each after the end of the one before."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from controller.domain.effects import StaleError
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database
from support.leading.failpoints import Failpoints
from support.leading.lifecycle import Act, Crew, World

STEP_LIMIT_S = 30.0
_MAX_ROUNDS = 1000
_ANALYSIS_POLL_S = 0.02
PASSING: tuple[type[Exception], ...] = (*DATABASE_ERRORS, StaleError)  # errors that the loop retries


@dataclass
class Handover:
    """Runs acts with crews over `database`, which may fail at `points`. A new crew succeeds a killed one."""

    world: World
    database: Database
    points: Failpoints
    crew: Crew
    between: Callable[[], Awaitable[None]] | None = None  # called after every possible change
    takeovers: int = 0
    failures: int = 0
    pictures: list[dict[str, str]] = field(default_factory=list)

    @classmethod
    async def begin(cls, world: World, database: Database, points: Failpoints) -> "Handover":
        return cls(world, database, points, await Crew.begin(database))

    async def run(self, act: Act) -> None:
        """Runs the act, lets the world settle, checks it and returns its picture."""
        await act.do(self.world)
        await self._pause()
        await self.settle()
        await self.world.check()
        self.pictures.append(await self.world.picture())

    async def settle(self) -> None:
        """Repeats rounds of steps until one changes nothing."""
        trace = ""
        for _ in range(_MAX_ROUNDS):
            well = [await self.step(step) for step in self.crew.steps]
            moved = await self.world.hosts.run_commands()
            await self._pause()
            before, trace = trace, await self.world.trace()
            if self.crew.analyses.uids():
                trace = ""  # its result is not stepped over yet
                await asyncio.sleep(_ANALYSIS_POLL_S)
            elif all(well) and not moved and trace == before:
                return
        raise AssertionError(f"does not settle; last struck: {self.points.struck}")

    async def step(self, step: Callable[[], Awaitable[None]]) -> bool:
        """One step as the loop runs it; False where it failed. A new crew succeeds a killed one at once."""
        task = asyncio.create_task(self._limited(step), name="step")
        await asyncio.wait({task})
        if task.cancelled():
            await self.take_over()
            return False
        error = task.exception()
        if error is None:
            await self._pause()
            return True
        if not isinstance(error, PASSING):
            raise error
        self.failures += 1
        return False

    async def take_over(self) -> None:
        """A new term begins; no earlier leader writes any more."""
        await self.world.check()
        self.takeovers += 1
        old, self.crew = self.crew, await Crew.begin(self.database)
        wants, self.points.wants = self.points.wants, lambda _: False
        before = await self.world.trace()
        for step in (*old.steps, old.keep_house):
            try:
                await step()
            except StaleError:
                continue
        assert await self.world.trace() == before, f"a former leader wrote; failed at: {self.points.struck}"
        self.points.wants = wants
        await old.aclose()

    async def _pause(self) -> None:
        if self.between is not None:
            await self.between()

    async def _limited(self, step: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.timeout(STEP_LIMIT_S) as self.points.deadline:
            await step()
