"""Waits until deployments run or an object is gone, and prints every change meanwhile.

A wait polls, and survives a restart of the controller.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cli.errors import CliError, TimedOutError, UnreachableError
from cli.objects.kinds import why
from cli.text.formatting import printable
from cli.text.rollouts import STANDS, rollout_state
from cli.transport.client import Api
from cli.transport.paths import parse, path_of
from cli.waiting.states import Goal, WaitState
from schemas.api.deployments import DeploymentView
from schemas.api.instances import InstanceView
from schemas.api.workers import WorkerView
from schemas.worker_conditions import DRAINED

POLL_S: Final = 0.5
_ENDED: Final = ("succeeded", "failed")


@dataclass(frozen=True, slots=True)
class Target:
    """An applied deployment to wait for."""

    name: str
    uid: str
    generation: int


_OF_PHASE: Final = {
    Goal.RUNNING: {
        "running": WaitState.DONE,
        "succeeded": WaitState.DONE,
        "asleep": WaitState.DONE,  # a request wakes it
        "stopped": WaitState.DONE,  # with 0 wanted replicas; `wait_state` handles the others
        "failed": WaitState.FAILED,
    },
    Goal.SUCCEEDED: {
        "succeeded": WaitState.DONE,
        "stopped": WaitState.FAILED,
        "failed": WaitState.FAILED,
    },
}


def wait_state(target: Target, view: DeploymentView | None, goal: Goal = Goal.RUNNING) -> tuple[WaitState, str]:
    """Whether the wait for a deployment to run or to succeed is over, and a line about its phase. Pure."""
    if view is None or view.uid != target.uid or view.deleted_at is not None:
        return WaitState.FAILED, f"{target.name}: was deleted"
    status = view.status
    if status.observed_generation < target.generation:
        return WaitState.WAITING, f"{target.name}: not observed yet"
    reason = status.message or status.reason
    line = f"{target.name}: {status.phase} {status.ready}/{status.wanted}" + (f" - {reason}" if reason else "")
    if goal is Goal.SUCCEEDED and view.spec.restart == "always":
        line = f"{target.name}: never succeeds with `restart: always`; write `restart: never`, or wait for running"
        return WaitState.FAILED, line
    if status.phase == "stopped" and view.spec.replica_bounds[1] > 0:
        line += f"\nit is stopped until you run: gpuward start {target.name}"
        return WaitState.FAILED, line
    rollout = status.rollout
    if rollout is not None and rollout.revision == status.revision and rollout.state in STANDS:
        return WaitState.FAILED, f"{line}\ngo back: gpuward rollout undo {target.name}"
    return _OF_PHASE[goal].get(status.phase, WaitState.WAITING), line


class ProgressLog:
    """Prints the line of an object to stderr whenever it changes."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        """`write` takes a line; None: it is printed."""
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))
        self._last: dict[str, str] = {}

    def forget(self, key: str) -> None:
        """Makes `report` print the next line about `key` even if it is the same."""
        self._last.pop(key, None)

    def report(self, key: str, line: str) -> None:
        """Prints the line about the object `key` if it has changed."""
        if self._last.get(key) != line:
            self._last[key] = line
            self._write("\n".join(printable(part) for part in line.split("\n")))


def until_running(
    api: Api,
    targets: Iterable[Target],
    timeout_s: float,
    progress: ProgressLog,
    goal: Goal = Goal.RUNNING,
) -> None:
    """Waits until every target runs or has succeeded; with the goal `SUCCEEDED`, until every target has succeeded.

    Raises:
        CliError: a target failed, was stopped or was deleted.
        TimedOutError: the timeout is over.
    """
    waiting = {target.name: target for target in targets}

    def check() -> bool:
        for target in list(waiting.values()):
            raw = api.find(path_of("deployments", target.name))
            state, line = wait_state(target, parse(DeploymentView, raw) if raw is not None else None, goal)
            if state is WaitState.FAILED:
                _report_instances(api, target, progress)
                raise CliError(line)
            _report_instances(api, target, progress)
            progress.report(target.name, line)
            if state is WaitState.DONE:
                del waiting[target.name]
        return not waiting

    _poll(api, check, timeout_s, progress, lambda: f"still not {goal.value}: {', '.join(waiting)}")


def until_stopped(api: Api, uids: Mapping[str, str], timeout_s: float, progress: ProgressLog) -> None:
    """Waits until these deployments, by name with their uids, are stopped and no instance of them is left.

    Raises:
        CliError: one was deleted.
        TimedOutError: the timeout is over.
    """
    waiting = dict(uids)

    def check() -> bool:
        for name, uid in list(waiting.items()):
            raw = api.find(path_of("deployments", name))
            if raw is None or raw["uid"] != uid:
                raise CliError(f"{name}: was deleted")
            left = api.items(path_of("instances"), deployment=name)
            line = stopped_line(parse(DeploymentView, raw), [parse(InstanceView, one) for one in left])
            progress.report(name, line or f"{name}: stopped")
            if not line:
                del waiting[name]
        return not waiting

    _poll(api, check, timeout_s, progress, lambda: f"still not stopped: {', '.join(waiting)}")


def stopped_line(view: DeploymentView, instances: Iterable[InstanceView]) -> str:
    """What keeps a deployment from being stopped; empty: it is stopped. Pure."""
    left = [one.name for one in instances if one.spec.deployment_uid == view.uid and one.status.phase not in _ENDED]
    if view.status.phase != "stopped":
        return f"{view.name}: {view.status.phase} {view.status.ready}/{view.status.wanted}"
    return f"{view.name}: waiting for the end of {', '.join(sorted(left))}" if left else ""


def until_rolled_out(api: Api, name: str, uid: str, timeout_s: float, progress: ProgressLog) -> str:
    """Waits until a deployment's newest revision is rolled out; returns a line that says so.

    Raises:
        CliError: the rollout has failed or was aborted, or the deployment was deleted.
        TimedOutError: the timeout is over.
    """
    last = ""

    def check() -> bool:
        nonlocal last
        raw = api.find(path_of("deployments", name))
        if raw is None:
            raise CliError(f"{name}: was deleted")
        state, last = rollout_state(parse(DeploymentView, raw), uid)
        if state is WaitState.FAILED:
            raise CliError(last)
        if state is WaitState.WAITING:
            progress.report(name, last)
        return state is WaitState.DONE

    _poll(api, check, timeout_s, progress, lambda: f"not rolled out yet: {last}")
    return last


def until_all_gone(api: Api, uids: Mapping[str, str], timeout_s: float, progress: ProgressLog) -> None:
    """Waits until these deployments, by name with their uids, are gone.

    Raises:
        TimedOutError: the timeout is over.
    """
    waiting = dict(uids)

    def check() -> bool:
        for name, uid in list(waiting.items()):
            raw = api.find(path_of("deployments", name))
            if raw is None or raw["uid"] != uid:
                progress.report(name, f"{name}: gone")
                del waiting[name]
            else:
                progress.report(name, f"{name}: {raw['status']['phase']}")
        return not waiting

    _poll(api, check, timeout_s, progress, lambda: f"still there: {', '.join(waiting)}")


def until_gone(api: Api, path: str, name: str, uid: str, timeout_s: float, progress: ProgressLog) -> None:
    """Waits until the object with this uid is gone.

    Raises:
        TimedOutError: the timeout is over.
    """

    def check() -> bool:
        raw = api.find(path)
        if raw is None or raw.get("uid") != uid:
            return True
        phase = raw.get("status", {}).get("phase", "")
        progress.report(name, f"{name}: {phase}, waiting for its processes to end")
        return False

    _poll(api, check, timeout_s, progress, lambda: f"{name} still exists")


def until_drained(api: Api, uids: Mapping[str, str], timeout_s: float, progress: ProgressLog) -> None:
    """Waits until nothing holds claims on these workers, by name with their uids.

    Raises:
        CliError: a worker was deleted, or its drain was ended.
        TimedOutError: the timeout is over, or only tasks run there that the drain does not stop.
    """
    waiting = dict(uids)

    def check() -> bool:
        for name, uid in list(waiting.items()):
            raw = api.find(path_of("workers", name))
            if raw is None or raw["uid"] != uid:
                raise CliError(f"{name}: was deleted")
            view = parse(WorkerView, raw)
            if not view.spec.draining:
                raise CliError(f"{name}: is no longer drained")
            condition = next((one for one in view.status.conditions if one.type == DRAINED), None)
            why = condition.message if condition is not None else f"{view.status.instances} instances are left"
            done = view.status.state == "drained"
            progress.report(name, f"{name}: drained" if done else f"{name}: draining - {why}")
            if done:
                del waiting[name]
            elif condition is not None and condition.reason == "tasks_run_on":
                raise TimedOutError(f"{name}: {why}")
        return not waiting

    _poll(api, check, timeout_s, progress, lambda: f"still not drained: {', '.join(waiting)}")


def _report_instances(api: Api, target: Target, progress: ProgressLog) -> None:
    for raw in api.items(path_of("instances"), deployment=target.name):
        instance = parse(InstanceView, raw)
        if instance.spec.deployment_uid != target.uid:  # of an earlier deployment of the same name
            continue
        where = f" on {instance.status.worker}" if instance.status.worker else ""
        reason = why(instance.status)
        line = f"  {instance.name}: {instance.status.phase}{where}" + (f" - {reason}" if reason else "")
        progress.report(instance.name, line)


def _poll(
    api: Api, check: Callable[[], bool], timeout_s: float, progress: ProgressLog, what: Callable[[], str]
) -> None:
    """Calls `check` until it returns True. A request within it is given up at the deadline, too."""
    api.deadline = time.monotonic() + timeout_s
    try:
        while True:
            try:
                if check():
                    return
                progress.forget("")
            except UnreachableError as error:
                progress.report("", str(error).splitlines()[0] + "; retrying")
            time.sleep(max(0.0, min(POLL_S, api.deadline - time.monotonic())))
            if time.monotonic() >= api.deadline:
                raise TimedOutError(f"timed out after {timeout_s:g} s: {what()}")
    finally:
        api.deadline = float("inf")
