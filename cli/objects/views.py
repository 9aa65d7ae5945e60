"""Objects of the API, for tables. Their specs are not parsed, since the models of manifests are slow to import.

Verbs that need such a model use `parse`.
"""

from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

from cli.transport.paths import parse
from schemas.api.view import Manifest, View, read_model

_MODULES: Final = {
    "CachedModelView": "model_cache", "DeploymentView": "deployments", "EventView": "events", "GatewayView": "usage",
    "GpuView": "gpus", "InstanceView": "instances", "KeyView": "access", "PendingView": "pending",
    "PolicyView": "policies", "SecretView": "access", "TokenView": "access", "UtilizationView": "history",
    "WorkerView": "workers",
}  # fmt: skip


def read_view(name: str, raw: Any) -> Any:
    """A JSON object of the API as the view of this name; see `parse`. Its spec is not parsed."""
    kind: type[View] = getattr(import_module(f"schemas.api.{_MODULES[name]}"), name)
    return parse(kind, raw, _read)


class _Spec(SimpleNamespace):
    """The fields of a spec as the server sent them; None for a field that it does not know."""

    def __getattr__(self, name: str) -> None:
        return None


def _read(model: type[Manifest], raw: Any) -> Any:
    return _Spec(**raw) if model.module.startswith("schemas.manifest") else read_model(model, raw)
