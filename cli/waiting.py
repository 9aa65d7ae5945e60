"""Waiting until what was applied runs, or what was deleted is gone; tells every change while it waits.

Waits poll, and outlive a controller that restarts meanwhile.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from cli.answers import parse, path_of
from cli.errors import CliError, TimedOutError, UnreachableError
from cli.figures import printable
from cli.kinds import outlook
from schemas.api.deployments import DeploymentView
from schemas.api.instances import InstanceView

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """A deployment as it was applied."""

    name: str
    uid: str
    generation: int


class Verdict(Enum):
    """Where a wait stands."""

    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


_OF_PHASE: Final = {
    "running": Verdict.DONE,
    "succeeded": Verdict.DONE,
    "stopped": Verdict.DONE,  # with no replicas wanted
    "failed": Verdict.FAILED,
}


def judge(target: Target, view: DeploymentView | None) -> tuple[Verdict, str]:
    """Whether a deployment has come where it was to come, and a line that says where it is. Pure."""
    if view is None or view.uid != target.uid or view.deleted_at is not None:
        return Verdict.FAILED, f"{target.name}: was deleted meanwhile"
    status = view.status
    if status.observed_generation < target.generation:
        return Verdict.WAITING, f"{target.name}: not looked at yet"
    why = status.message or status.reason
    line = f"{target.name}: {status.phase} {status.ready}/{status.wanted}" + (f" - {why}" if why else "")
    if status.phase == "stopped" and view.spec.replicas > 0:
        line += f"\nit was stopped and stays so; start it: gpuward start {target.name}"
        return Verdict.FAILED, line
    return _OF_PHASE.get(status.phase, Verdict.WAITING), line


class Narrator:
    """Prints each object's line when it is another than last time, to stderr."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        """`say` takes a line; by default it is printed."""
        self._say = say or (lambda line: print(line, file=sys.stderr, flush=True))
        self._last: dict[str, str] = {}

    def forget(self, key: str) -> None:
        """The next line about `key` is printed, whatever it is."""
        self._last.pop(key, None)

    def tell(self, key: str, line: str) -> None:
        """A line about the object `key`."""
        if self._last.get(key) != line:
            self._last[key] = line
            self._say("\n".join(printable(part) for part in line.split("\n")))


async def until_running(api: "Api", targets: Iterable[Target], timeout_s: float, narrator: Narrator) -> None:
    """Waits until every target runs or has succeeded.

    Raises:
        CliError: one failed, was stopped or was deleted; the others are not waited for.
        TimedOutError: the time is over.
    """
    waiting = {target.name: target for target in targets}

    async def look() -> bool:
        for target in list(waiting.values()):
            raw = await api.find(path_of("deployments", target.name))
            verdict, line = judge(target, parse(DeploymentView, raw) if raw is not None else None)
            if verdict is Verdict.FAILED:
                raise CliError(line)
            await _tell_instances(api, target, narrator)
            narrator.tell(target.name, line)
            if verdict is Verdict.DONE:
                del waiting[target.name]
        return not waiting

    await _poll(look, timeout_s, narrator, lambda: f"still not running: {', '.join(waiting)}")


async def until_gone(api: "Api", path: str, name: str, uid: str, timeout_s: float, narrator: Narrator) -> None:
    """Waits until the object of this uid is no more.

    Raises:
        TimedOutError: the time is over.
    """

    async def look() -> bool:
        raw = await api.find(path)
        if raw is None or raw.get("uid") != uid:
            return True
        phase = raw.get("status", {}).get("phase", "")
        narrator.tell(name, f"{name}: {phase}, waiting until its processes have ended")
        return False

    await _poll(look, timeout_s, narrator, lambda: f"{name} is still there")


async def _tell_instances(api: "Api", target: Target, narrator: Narrator) -> None:
    for raw in await api.items(path_of("instances"), deployment=target.name):
        instance = parse(InstanceView, raw)
        if instance.spec.deployment_uid != target.uid:  # of an earlier one of the same name, on its way out
            continue
        where = f" on {instance.status.worker}" if instance.status.worker else ""
        why = outlook(instance.status)
        line = f"  {instance.name}: {instance.status.phase}{where}" + (f" - {why}" if why else "")
        narrator.tell(instance.name, line)


async def _poll(
    look: Callable[[], Awaitable[bool]], timeout_s: float, narrator: Narrator, what: Callable[[], str]
) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    if await look():
                        return
                    narrator.forget("")
                except UnreachableError as error:
                    narrator.tell("", str(error).splitlines()[0] + "; still trying")
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise TimedOutError(f"timed out after {timeout_s:g} s: {what()}") from None
