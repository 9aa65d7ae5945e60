"""The stream of `GET /watch`."""

from typing import Any, Literal

from schemas.api.deployments import DeploymentView
from schemas.api.instances import InstanceView
from schemas.api.policies import PolicyView
from schemas.api.workers import WorkerView
from schemas.base import View


class WatchEvent(View):
    """One server-sent event: `snapshot` first, then `changed` or `gone` objects."""

    type: Literal["snapshot", "changed", "gone"]
    object: DeploymentView | InstanceView | WorkerView | PolicyView | dict[str, Any]
