"""The start order for one process, from the spec and the claims. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from gpuward.controller.engines.registry import engine_for
from gpuward.schemas.manifest import DeploymentSpec, SecretRef
from gpuward.schemas.wire import ClaimOrder, StartOrder


class ClaimLike(Protocol):
    """A claim as far as an order must know it."""

    @property
    def device(self) -> str:
        """UUID."""

    @property
    def memory_mib(self) -> int:
        """MiB."""

    @property
    def exclusive(self) -> bool:
        """Whole GPU."""


def start_payload(
    spec: DeploymentSpec, *, deployment: str, deployment_uid: str, gpus: Sequence[ClaimLike]
) -> dict[str, Any]:
    """A start order as JSON, with `env_secrets` beside it: secrets are filled in at delivery, never stored.

    Args:
        spec: the revision's spec.
        deployment: its name.
        deployment_uid: its uid.
        gpus: claims on GPUs in the order in which the process shall see them.
    """
    process = engine_for(spec).process(spec, len(gpus))
    plain = {name: value for name, value in spec.env.items() if not isinstance(value, SecretRef)}
    stop_after = spec.stop_on_disconnect_after
    order = StartOrder(
        deployment=deployment,
        deployment_uid=deployment_uid,
        argv=tuple(process.argv),
        env={**process.env, **plain},
        claims=tuple(_claims(gpus)),
        needs_port=process.needs_port,
        probe=process.probe,
        start_timeout_s=spec.start_timeout,
        drain_time_s=spec.drain_time,
        stop_on_disconnect_after_s=None if stop_after == "none" else stop_after,
        simulated_load=process.simulated_load,
        request_gauges=process.request_gauges,
    )
    secrets = {name: value.secret for name, value in spec.env.items() if isinstance(value, SecretRef)}
    return {**order.model_dump(mode="json"), "env_secrets": secrets}


def _claims(gpus: Iterable[ClaimLike]) -> Iterable[ClaimOrder]:
    return (ClaimOrder(device=c.device, memory_mib=c.memory_mib, exclusive=c.exclusive) for c in gpus)
