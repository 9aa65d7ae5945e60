"""The answer to `POST /plan`: what an apply would do."""

from typing import Literal

from schemas.api.explain import Explain
from schemas.api.needs import LayoutView, NeedView
from schemas.api.policies import PlannedPolicy
from schemas.base import View


class PlanItem(View):
    """What would happen to one instance."""

    deployment: str
    instance: int
    fits: bool
    worker: str | None = None  # of a gang the worker of the leader
    workers: list[str] = []  # by rank
    gpus: list[str] = []  # by rank, in the order that the process sees
    memory_mib_per_gpu: int | None = None
    engine: str | None = None
    layout: LayoutView | None = None
    need: NeedView | None = None
    preempts: list[str] = []  # instances that would be preempted, so that it fits once they have ended
    reason: str | None = None  # the reason code of an instance that stays pending
    explain: Explain | None = None


class PlanView(View):
    """What an apply would do, by name of deployments and policies."""

    items: list[PlanItem]
    changes: dict[str, Literal["create", "replace", "update", "unchanged"]] = {}
    policy_changes: dict[str, Literal["create", "update", "unchanged"]] = {}
    warnings: list[str] = []  # such as unknown names of workers and GPUs; each begins with the deployment
    rollouts: dict[str, str] = {}  # of deployments that change to `replace`: how their instances would be replaced
    policies: dict[str, PlannedPolicy] = {}  # the effective policy of each deployment; a missing key means none
