"""The past: utilization over a window, and GPU hours that were claimed, used and wasted."""

from schemas.api.view import Moment, View


class SeriesView(View, frozen=True, kw_only=True):
    """The utilization of one GPU over the window.

    Attributes:
        gpu: UUID.
        worker: name of its worker.
        instance: only the processes of this instance count; empty: all processes count.
        values: the maximum of each slot in percent, oldest first; None: no sample.
    """

    gpu: str
    worker: str
    instance: str = ""
    values: list[float | None]


class WatchView(View, frozen=True, kw_only=True):
    """The policy of what is shown. Its name is empty if it is inline."""

    name: str
    min_gpu_utilization: int
    time_window: int


class UtilizationView(View, frozen=True, kw_only=True):
    """The utilization of GPUs over the `window_s` seconds before `until`, in slots of `slot_s` seconds."""

    until: Moment
    window_s: float
    slot_s: float
    series: list[SeriesView]
    policy: WatchView | None = None


class IdleFigures(View, frozen=True, kw_only=True):
    """GPU hours. A claim of a share of a GPU's memory counts as that share.

    Attributes:
        claimed: held by claims, even if nothing ran.
        used: claimed, weighted by the mean utilization.
        wasted: claimed in minutes whose maximum was below the minimum of the policy.
        unknown: claimed in minutes without samples.
        freed: not claimed because a policy had stopped the holder, until it was started again.
        would_free: claimed after the replayed policy would have found the instance idle; None: nothing was replayed.
    """

    claimed: float
    used: float
    wasted: float
    unknown: float
    freed: float
    would_free: float | None = None


class IdleCost(View, frozen=True, kw_only=True):
    """GPU hours in money: decimal numbers with two decimals, in the report's currency.

    None: some of these hours were on GPUs of a model without a price, or nothing was replayed. What policies freed has
    no amount.
    """

    claimed: str | None
    used: str | None
    wasted: str | None
    unknown: str | None
    would_free: str | None = None


class UnpricedModel(View, frozen=True, kw_only=True):
    """A model of GPUs without a price, and the GPU hours that were claimed on it. An empty name: unknown."""

    model: str
    gpu_hours: float


class IdleItem(View, frozen=True, kw_only=True):
    """The GPU hours of a deployment. Deployments that had the same name differ in their uid.

    Attributes:
        min_gpu_utilization: a minute below this many percent is wasted: that of the effective policy, else 10.
        policy: the name of the effective policy, `inline`, or empty if there is none.
        cost: None where no prices are set.
    """

    deployment: str
    uid: str
    deleted: bool
    policy: str
    min_gpu_utilization: int
    gpu_hours: IdleFigures
    cost: IdleCost | None = None


class PolicyItem(View, frozen=True, kw_only=True):
    """How often a policy acted, and the GPU hours that it freed. `policy` is its name, or `inline`."""

    policy: str
    actions: int
    gpu_hours_freed: float


class ReplayedPolicy(View, frozen=True, kw_only=True):
    """A policy that was replayed over the history."""

    min_gpu_utilization: int
    time_window: int


class IdleStretch(View, frozen=True, kw_only=True):
    """Minutes without a gap in which the deployment wasted GPU hours.

    Attributes:
        seconds: from `since` to `until`.
        gpus: the most GPUs on which it did so in one minute.
        gpu_hours: wasted within it; less than `gpus` times its length where fewer were idle, a share of a GPU is
            claimed, or samples are missing.
    """

    since: Moment
    until: Moment
    seconds: float
    gpus: int
    gpu_hours: float


class IdleStretches(View, frozen=True, kw_only=True):
    """When a deployment wasted GPU hours, by the rules of the idle report.

    Attributes:
        since, until: what was looked at; samples are rolled up to `until`.
        policy: the name of the effective policy, `inline`, or empty if there is none.
        min_gpu_utilization: a minute below this many percent is wasted: that of the policy, else 10.
        gpu_hours: wasted in all stretches: that of the report.
        items: the oldest first.
    """

    deployment: str
    uid: str
    since: Moment
    until: Moment
    policy: str
    min_gpu_utilization: int
    gpu_hours: float
    items: list[IdleStretch]
    next: str | None = None


class IdleReport(View, frozen=True, kw_only=True):
    """GPU hours by deployment from `since` to `until`, the time up to which samples are rolled up.

    Attributes:
        items: the most wasteful first.
        currency: of all amounts; None: no prices are set.
        total_cost: the sum of the items' amounts; an item without an amount is not in it.
        unpriced: where prices are set, models that have none and were claimed, most hours first.
    """

    since: Moment
    until: Moment
    items: list[IdleItem]
    policies: list[PolicyItem]
    total: IdleFigures
    replayed: ReplayedPolicy | None = None
    currency: str | None = None
    total_cost: IdleCost | None = None
    unpriced: list[UnpricedModel] = []
