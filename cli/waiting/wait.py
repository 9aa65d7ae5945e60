"""Waits until deployments run or an object is gone, and prints every change until then.

A wait polls, and survives a restart of the controller. It raises `TimedOutError` after the timeout, and `CliError`
where the goal cannot be reached any more: the object has failed, was stopped or was deleted.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cli.errors import CliError, TimedOutError, UnreachableError
from cli.objects.kinds import why
from cli.text.formatting import printable
from cli.text.gpu_names import GpuNames
from cli.text.rollouts import rollout_state
from cli.transport.client import Api
from cli.transport.paths import Json, parse, path_of
from cli.waiting.states import Goal, Target, WaitState, stopped_line, wait_state
from schemas.api.deployments import DeploymentView
from schemas.api.instances import InstanceView
from schemas.api.workers import WorkerView
from schemas.worker_conditions import DRAINED

POLL_S: Final = 0.5


class ProgressLog:
    """Prints the line of an object whenever it changes.

    Args:
        write: takes a line; None: it goes to stderr.
        gpus: their names, which lines have in the place of UUIDs.
    """

    def __init__(self, write: Callable[[str], None] | None = None, gpus: GpuNames | None = None) -> None:
        self._gpus = gpus or GpuNames()
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))
        self._last: dict[str, str] = {}

    def forget(self, key: str) -> None:
        """`report` prints the next line about `key` even if it is the same."""
        self._last.pop(key, None)

    def report(self, key: str, line: str) -> None:
        if self._last.get(key) != line:
            self._last[key] = line
            self._write("\n".join(printable(self._gpus.in_text(part)) for part in line.split("\n")))


def until_running(
    api: Api, targets: Iterable[Target], timeout_s: float, progress: ProgressLog, goal: Goal = Goal.RUNNING
) -> None:
    """Waits until every target runs or has succeeded; with the goal `SUCCEEDED`, until every target has succeeded."""
    by_name = {target.name: target for target in targets}

    def is_done(name: str) -> bool:
        raw = api.find(path_of("deployments", name))
        state, line = wait_state(by_name[name], parse(DeploymentView, raw) if raw is not None else None, goal)
        _report_instances(api, by_name[name], progress)
        if state is WaitState.FAILED:
            raise CliError(line)
        progress.report(name, line)
        return state is WaitState.DONE

    _until_all(api, by_name, is_done, timeout_s, progress, f"still not {goal.value}")


def until_stopped(api: Api, uids: Mapping[str, str], timeout_s: float, progress: ProgressLog) -> None:
    """Waits until these deployments, uids by name, are stopped and have no instances."""

    def is_done(name: str) -> bool:
        view = parse(DeploymentView, _existing(api, "deployments", name, uids[name]))
        left = api.items(path_of("instances"), deployment=name)
        line = stopped_line(view, [parse(InstanceView, raw) for raw in left])
        progress.report(name, line or f"{name}: stopped")
        return not line

    _until_all(api, uids, is_done, timeout_s, progress, "still not stopped")


def until_rolled_out(api: Api, name: str, uid: str, timeout_s: float, progress: ProgressLog) -> str:
    """Waits until a deployment's newest revision is rolled out; returns a line about it."""
    line = ""

    def is_done(_name: str) -> bool:
        nonlocal line
        state, line = rollout_state(parse(DeploymentView, _existing(api, "deployments", name, uid)), uid)
        if state is WaitState.FAILED:
            raise CliError(line)
        if state is WaitState.WAITING:
            progress.report(name, line)
        return state is WaitState.DONE

    _until_all(api, [name], is_done, timeout_s, progress, "not rolled out yet")
    return line


def until_gone(api: Api, uids: Mapping[str, str], timeout_s: float, progress: ProgressLog, list_of: str) -> None:
    """Waits until these objects of a list, uids by name, are gone."""

    def is_done(name: str) -> bool:
        raw = api.find(path_of(list_of, name))
        if raw is None or raw.get("uid") != uids[name]:
            progress.report(name, f"{name}: gone")
            return True
        progress.report(name, f"{name}: {raw.get('status', {}).get('phase', '')}, waiting for its processes to end")
        return False

    _until_all(api, uids, is_done, timeout_s, progress, "still there")


def until_drained(api: Api, uids: Mapping[str, str], timeout_s: float, progress: ProgressLog) -> None:
    """Waits until no instance has claims on these workers. Raises `TimedOutError` if only tasks are left."""

    def is_done(name: str) -> bool:
        view = parse(WorkerView, _existing(api, "workers", name, uids[name]))
        if not view.spec.draining:
            raise CliError(f"{name}: is no longer drained")
        condition = next((known for known in view.status.conditions if known.type == DRAINED), None)
        why = condition.message if condition is not None else f"{view.status.instances} instances are left"
        done = view.status.state == "drained"
        progress.report(name, f"{name}: drained" if done else f"{name}: draining - {why}")
        if not done and condition is not None and condition.reason == "tasks_run_on":
            raise TimedOutError(f"{name}: {why}")
        return done

    _until_all(api, uids, is_done, timeout_s, progress, "still not drained")


def _existing(api: Api, list_of: str, name: str, uid: str) -> Json:
    raw = api.find(path_of(list_of, name))
    if raw is None or raw["uid"] != uid:
        raise CliError(f"{name}: was deleted")
    return raw


def _report_instances(api: Api, target: Target, progress: ProgressLog) -> None:
    for raw in api.items(path_of("instances"), deployment=target.name):
        instance = parse(InstanceView, raw)
        if instance.spec.deployment_uid != target.uid:  # of an earlier deployment of the same name
            continue
        where = f" on {instance.status.worker}" if instance.status.worker else ""
        reason = why(instance.status)
        line = f"  {instance.name}: {instance.status.phase}{where}" + (f" - {reason}" if reason else "")
        progress.report(instance.name, line)


def _until_all(
    api: Api,
    names: Iterable[str],
    is_done: Callable[[str], bool],
    timeout_s: float,
    progress: ProgressLog,
    otherwise: str,
) -> None:
    waiting = list(names)
    api.deadline = time.monotonic() + timeout_s  # ends a request in progress, too
    try:
        while True:
            try:
                waiting = [name for name in waiting if not is_done(name)]
                progress.forget("")
            except UnreachableError as error:
                progress.report("", str(error).splitlines()[0] + "; retrying")
            if not waiting:
                return
            time.sleep(max(0.0, min(POLL_S, api.deadline - time.monotonic())))
            if time.monotonic() >= api.deadline:
                raise TimedOutError(f"timed out after {timeout_s:g} s: {otherwise}: {', '.join(waiting)}")
    finally:
        api.deadline = float("inf")
