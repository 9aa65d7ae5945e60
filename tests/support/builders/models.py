"""Live deployments as the gateway sees them; a test names only what differs."""

from dataclasses import replace
from typing import Any

from controller.live.endpoints import Endpoint, Model
from schemas.manifest.serving import ServingLimits


def model(name: str = "m", *, serving: dict[str, Any] | None = None, **fields: Any) -> Model:
    base = Model(f"uid-{name}", ServingLimits.model_validate(serving or {}), may_sleep=False, wanted=1, starting=0)
    return replace(base, **fields)


def models(*names: str) -> dict[str, Model]:
    return {name: model(name) for name in names}


def endpoint(instance: str, of: str = "m", *, most: int = 256) -> Endpoint:
    return Endpoint(model=of, instance=instance, address="127.0.0.1:1", secret="s", max_in_flight=most)
