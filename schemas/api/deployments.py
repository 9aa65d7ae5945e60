"""Deployments as the API returns them."""

from datetime import datetime
from typing import Literal

from schemas.api.envelopes import Condition
from schemas.api.policies import DeploymentPolicy
from schemas.base import View
from schemas.manifest.deployment import DeploymentSpec

DeploymentPhaseName = Literal[
    "pending", "progressing", "running", "degraded", "stopped", "succeeded", "failed", "deleting"
]


class IntentView(View):
    """A limit on the wanted replicas, with its source."""

    source: Literal["user", "policy", "autoscaler"]
    max_replicas: int
    reason: str = ""
    message: str = ""
    created_at: datetime


class DeploymentStatus(View):
    """The status of a deployment, derived from its instances.

    Attributes:
        ready: number of running instances.
        wanted: number of wanted instances: the replicas of the spec, limited by the intents.
        observed_generation: the latest generation that the controller has acted on.
        policy: the effective utilization policy; None: there is none.
    """

    phase: DeploymentPhaseName
    reason: str = ""
    message: str = ""
    ready: int = 0
    wanted: int = 0
    observed_generation: int = 0
    revision: int = 1
    conditions: list[Condition] = []
    intents: list[IntentView] = []
    policy: DeploymentPolicy | None = None


class DeploymentView(View):
    """A deployment. `warnings` are about what an apply has just written; empty in all other answers."""

    kind: Literal["Deployment"] = "Deployment"
    name: str
    uid: str
    generation: int
    created_at: datetime
    deleted_at: datetime | None = None
    spec: DeploymentSpec
    status: DeploymentStatus
    warnings: list[str] = []
