"""The answer to `POST /plan`: what an apply would lead to."""

from typing import Literal

from schemas.api.explain import Explain
from schemas.api.needs import LayoutView, NeedView
from schemas.api.policies import PlannedPolicy
from schemas.base import View


class PlanItem(View):
    """What would happen to one manifest's instances. Where it would fit, `engine` and `layout` say how."""

    deployment: str
    instance: int
    fits: bool
    worker: str | None = None  # of a gang the leader's
    workers: list[str] = []  # by rank
    gpus: list[str] = []  # by rank, in the order in which its process sees them
    memory_mib_per_gpu: int | None = None
    engine: str | None = None
    layout: LayoutView | None = None
    need: NeedView | None = None
    preempts: list[str] = []  # instances that would be pushed out; then it fits
    explain: Explain | None = None


class PlanView(View):
    """The whole answer; nothing was written. `changes` are of deployments, by name."""

    items: list[PlanItem]
    changes: dict[str, Literal["create", "replace", "update", "unchanged"]] = {}
    policy_changes: dict[str, Literal["create", "update", "unchanged"]] = {}
    policies: dict[str, PlannedPolicy] = {}  # that would apply, by deployment; missing: none
