"""The files that an apply, a leader's step and a warm chat request enter: traced over a real PostgreSQL."""

import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from types import FrameType
from typing import Any, Final

from controller.store.core.database import Database
from house_sources import PACKAGES, ROOT
from schemas.manifest.deployment import DeploymentSpec
from support.builders.apply import apply_spec
from support.database.ledger import add_host, rows
from support.leading.lifecycle import Crew
from support.leading.models_floor import Agent, Floor
from support.leading.served_api import ServedApi, served
from support.standins.hosts_by_hand import set_heartbeat

TIMES: Final = 15
_WARM_UP: Final = 20  # requests
_SPEC: Final = {"engine": "simulated", "resources": {"gpus": 1}}
_OURS: Final = tuple(f"{ROOT}/{package}/" for package in PACKAGES)
Act = Callable[[int], Awaitable[Any]]


@dataclass(frozen=True)
class Way:
    """The files of an act."""

    name: str  # of the act
    files: frozenset[str]  # that every run of it entered
    changes: int  # of room from one call to the next, in the run with the fewest
    calls: int  # of functions of ours in that run; each resumption of a coroutine counts

    def within(self, package: str) -> int:
        return sum(file.startswith(f"{package}/") for file in self.files)


async def measured_ways(database: Database, empty: Database) -> list[Way]:
    """The ways; the second database is the leader's, so that no server's own work is traced with it."""
    ways = []
    async with AsyncExitStack() as stack, served(database) as api:
        ways.append(await _apply(api))
        ways.append(await _chat(api, database, stack))
    ways += await _steps(empty)
    return ways


async def _apply(api: ServedApi) -> Way:
    async def act(number: int) -> None:
        manifest = {"kind": "Deployment", "name": f"d{number}", **_SPEC}
        status, answer = await api.call("POST", "/api/v1/apply", json={"manifests": [manifest]})
        assert status == 200, answer

    return await _way("an apply", act, warm_up=2)


async def _chat(api: ServedApi, database: Database, stack: AsyncExitStack) -> Way:
    floor = Floor(api, database, stack)
    await floor.replicas(Agent(), Agent())

    async def act(_number: int) -> None:
        status, answer = await floor.ask()
        assert status == 200, answer

    return await _way("a warm chat request", act, warm_up=_WARM_UP)


async def _steps(database: Database) -> Sequence[Way]:
    """A term's first step over one new deployment, and a step over the next one."""
    for number in range(4):  # enough GPUs for all that is placed
        await set_heartbeat(database, (await add_host(database, f"w{number}")).id)

    async def applied(name: str) -> str:
        await apply_spec(database, name, DeploymentSpec.model_validate(_SPEC))
        (row,) = await rows(database, "select uid from deployments where name = $1", name)
        return str(row["uid"])

    async def step(crew: Crew, uid: str) -> None:
        await crew.step_workers()
        await crew.cancelling.step([uid])
        await crew.instances.step([uid])
        await crew.step_placement()

    first, later = [], []
    for number in range(TIMES):
        crew = await Crew.begin(database)
        for runs, name in ((first, f"first{number}"), (later, f"later{number}")):
            uid = await applied(name)
            with _traced() as trace:
                await step(crew, uid)
            runs.append(trace)
        await crew.aclose()
    assert await rows(database, "select from instances where phase <> 'scheduled'") == []
    return [_of_runs("a term's first step", first), _of_runs("a later step", later)]


async def _way(name: str, act: Act, warm_up: int) -> Way:
    for number in range(warm_up):
        await act(number)
    runs = []
    for number in range(warm_up, warm_up + TIMES):
        with _traced() as trace:
            await act(number)
        runs.append(trace)
    return _of_runs(name, runs)


def _of_runs(name: str, runs: Sequence[list[str]]) -> Way:
    """The files common to all runs, since a sweep or a report of the servers may fall into some of them."""
    changes, calls = min((sum(_room(a) != _room(b) for a, b in pairwise(run)), len(run)) for run in runs)
    return Way(name, frozenset.intersection(*map(frozenset, runs)), changes, calls)


def _room(file: str) -> PurePath:
    return PurePath(file).parent


@contextmanager
def _traced() -> Iterator[list[str]]:
    """The file of each call of a function of the six packages, in order; also in threads that begin within."""
    entered: list[str] = []
    cut = len(str(ROOT)) + 1

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            file = frame.f_code.co_filename
            if file.startswith(_OURS):
                entered.append(file[cut:])

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
