"""What the API tells of the past: utilization over a window, and what was claimed, used and wasted."""

from datetime import datetime

from schemas.base import View


class SeriesView(View):
    """One GPU over the window, slot by slot, oldest first.

    Attributes:
        gpu: its UUID.
        worker: name of its worker.
        instance: whose processes alone these figures are of; empty: of all that ran on the GPU.
        values: percent, the highest of each slot; None where no sample speaks.
    """

    gpu: str
    worker: str
    instance: str = ""
    values: list[float | None]


class WatchView(View):
    """The policy that judges what is shown: its name (empty: inline), and below how many percent for how long."""

    name: str
    min_gpu_utilization: int
    time_window: int


class UtilizationView(View):
    """GPUs' utilization over the `window_s` seconds before `until`, in slots of `slot_s`."""

    until: datetime
    window_s: float
    slot_s: float
    series: list[SeriesView]
    policy: WatchView | None = None


class IdleFigures(View):
    """GPU hours: one GPU for one hour, or a share of its memory for as much longer.

    Attributes:
        claimed: held by claims, whether anything ran or not. A shared claim counts by its share of the GPU's memory.
        used: claimed, weighted by the mean utilization.
        wasted: claimed in minutes of which even the highest sample was below the policy's minimum.
        unknown: claimed while no sample spoke.
        freed: not claimed because a policy had stopped what claimed it, until it was wanted again.
        would_free: claimed after the replayed policy would first have found the instance idle; None: none was replayed.
    """

    claimed: float
    used: float
    wasted: float
    unknown: float
    freed: float
    would_free: float | None = None


class IdleItem(View):
    """A deployment's GPU hours. Of one name there are several where it was deleted and made again.

    Attributes:
        min_gpu_utilization: percent below which a minute counts as wasted: the policy's that applies now, or 10.
        policy: the name of that policy, `inline`, or empty where there is none.
    """

    deployment: str
    uid: str
    deleted: bool
    policy: str
    min_gpu_utilization: int
    gpu_hours: IdleFigures


class PolicyItem(View):
    """What a policy (its name, or `inline`) freed until it was wanted again, and how often it acted."""

    policy: str
    actions: int
    gpu_hours_freed: float


class ReplayedPolicy(View):
    """The policy that was replayed over the history."""

    min_gpu_utilization: int
    time_window: int


class IdleReport(View):
    """GPU hours by deployment from `since` up to `until`, to where the samples are rolled up."""

    since: datetime
    until: datetime
    items: list[IdleItem]
    policies: list[PolicyItem]
    total: IdleFigures
    replayed: ReplayedPolicy | None = None
