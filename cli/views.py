"""Objects of the API, for tables. Specs stay as they came: no model of a manifest, slow to import, is made of them.

Verbs that need such a model use `cli.api.parse`.
"""

from collections.abc import Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from cli.errors import CliError
from schemas.api.view import Manifest, View, from_plain, read_model
from schemas.version import __version__

_MODULES: Final = {
    "CachedModelView": "model_cache", "DeploymentView": "deployments", "EventView": "events", "GatewayView": "gateways",
    "GpuView": "gpus", "InstanceView": "instances", "KeyView": "access", "PendingView": "pending",
    "PolicyView": "policies", "SecretView": "access", "TokenView": "access", "UtilizationView": "history",
    "WorkerView": "workers",
}  # fmt: skip


def read_view(name: str, raw: Mapping[str, Any]) -> Any:
    """A JSON object of the API as the view of this name. The fields of its spec are attributes, as they were written.

    Unknown keys are ignored, missing ones get their defaults: the server may be newer or older.

    Raises:
        CliError: the object does not match the view.
    """
    kind: type[View] = getattr(import_module(f"schemas.api.{_MODULES[name]}"), name)
    try:
        return from_plain(kind, raw, read=_read)
    except msgspec.ValidationError as error:
        raise CliError(
            f"cannot read the {name} of the server ({error}); "
            f"use the gpuward version of the server (this is {__version__})"
        ) from None


class _Spec(SimpleNamespace):
    """The fields of a spec as they came; None for one that the server does not know."""

    def __getattr__(self, name: str) -> None:
        return None


def _read(model: type[Manifest], raw: Any) -> Any:
    return _Spec(**raw) if model.module.startswith("schemas.manifest") else read_model(model, raw)
