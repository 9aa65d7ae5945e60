"""Messages about a rollout. Pure."""

from collections.abc import Sequence
from typing import Final

from controller.domain.rollouts import RequestOutcomes, RolloutRecord
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.rollout import Rollout
from schemas.printing import first_of

_NAMED: Final = 3  # old replicas that a message names


def started_text(record: RolloutRecord) -> str:
    again = ", once more" if record.attempt > 1 and record.seen else ""
    return f"revision {record.revision} takes the place of revision {record.stable}{again}"


def progress_text(record: RolloutRecord, wanted: int) -> str:
    if wanted == 0:
        return f"revision {record.revision} starts with the next replica; none is wanted now"
    return f"{record.available} of {wanted} replicas run revision {record.revision}"


def canary_text(record: RolloutRecord, settings: Rollout, replicas: int, silent: Sequence[str]) -> str:
    weight = settings.canary.weight if settings.canary is not None else 0
    if record.canary_since is None:
        few = "1 replica" if replicas == 1 else f"{replicas} replicas"
        return f"waits for {few} of revision {record.revision} to be ready"
    text = f"revision {record.revision} gets {weight} % of the requests"
    if silent:
        names = ", ".join(silent)
        text += f"; gateway {names} does not report, so its errors are unknown and the canary goes on"
    return text


def complete_text(record: RolloutRecord, wanted: int) -> str:
    if record.updated > record.available:  # replicas by which the deployment has grown
        return f"{progress_text(record, wanted)}; the others find no place"
    return f"all replicas run revision {record.revision}"


def blocked_text(holders: Sequence[tuple[int, str]], enough: int) -> str:
    """Names the old replicas that hold the places for which a new replica waits, and the settings that would free one.

    `holders`: revision and name of each old replica. `enough`: the least `rollout.unavailable` with which any of them
    stops first.
    """
    names = first_of([name for _, name in holders], _NAMED)
    revisions = {revision for revision, _ in holders}
    of = f" of revision {min(revisions)}" if len(revisions) == 1 else ""
    hold = "holds its place and must stay" if len(holders) == 1 else "hold their places and must stay"
    return (
        f"the next one finds no place: {names}{of} {hold} available; `rollout.unavailable: {enough}` or "
        "`update: recreate` stops one first, `rollout.surge` needs a free place"
    )


def failed_text(record: RolloutRecord, tried_s: float, hopeless: str, trouble: str) -> str:
    why = hopeless or (f"not ready within {tried_s:g} s" + (f": {trouble}" if trouble else ""))
    return f"revision {record.revision} did not start ({why}); revision {record.stable} goes on serving"


def aborted_text(record: RolloutRecord, settings: Rollout, outcomes: RequestOutcomes) -> str:
    allowed = 100 * settings.abort.error_ratio if settings.abort is not None else 0
    failed = f"{outcomes.errors} of {outcomes.requests} requests to revision {record.revision} failed"
    return f"{failed}, more than {allowed:g} %; revision {record.stable} takes its place again"


def planned_text(spec: DeploymentSpec, wanted: int, *, back_to: int | None, paused: bool) -> str:
    """The way in which an apply of a spec that needs new processes would replace the instances.

    `back_to`: the older revision that the apply takes up again; None if it makes a new revision.
    """
    revision = "a new revision" if back_to is None else f"revision {back_to} again"
    if wanted == 0:
        return f"{revision}, with the next replica: none is wanted now"
    if spec.update != "rolling":
        return f"{revision}: each old instance stops before its replacement starts, one after the other"
    if paused:
        return f"{revision}, but the rollout is paused: nothing is replaced until it is resumed"
    settings = spec.rollout
    least = max(wanted - settings.unavailable, 0)
    bounds = f"at most {wanted + settings.surge} instances, at least {least} available; the oldest go first"
    if settings.canary is None:
        return f"{revision}: {bounds}"
    share = f"first {canary_size(wanted, settings.canary.weight)} of {wanted} with {settings.canary.weight} %"
    return f"{revision}: {share} of the requests for {settings.canary.for_s:g} s; {bounds}"


def canary_size(wanted: int, weight: int) -> int:
    """The number of canary replicas: its share of the wanted, at least one."""
    return min(max(-(-wanted * weight // 100), 1), wanted)
