"""The example deployment: two instances of a simulated engine."""

from typing import Any, Final

from cli.transport.client import Api
from cli.transport.paths import Json, parse, path_of
from cli.waiting.states import Target
from cli.waiting.wait import ProgressLog, until_running
from schemas.api.deployments import DeploymentView

EXAMPLE_NAME: Final = "hello"
EXAMPLE_MANIFEST: Final[dict[str, Any]] = {
    "kind": "Deployment",
    "name": EXAMPLE_NAME,
    "engine": "simulated",
    "replicas": 2,
    "resources": {"gpus": 1, "gpu_memory": "8GiB"},
}
_RUNNING_WITHIN_S: Final = 60.0


def run_example(api: Api, progress: ProgressLog) -> None:
    """Creates the example if it does not exist, and waits until it runs, unless the user has stopped it."""
    path = path_of("deployments", EXAMPLE_NAME)
    raw: Json | None = api.find(path)
    if raw is None or raw.get("deleted_at") is not None:
        raw = api.put(path, {k: v for k, v in EXAMPLE_MANIFEST.items() if k not in ("kind", "name")})
    view = parse(DeploymentView, raw)
    if not view.status.intents:
        until_running(api, [Target(view.name, view.uid, view.generation)], _RUNNING_WITHIN_S, progress)
