"""The start order for one process, from the spec and the claims. Pure."""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from controller.domain.placement import Layout, Need
from controller.engines.base import Launch
from controller.engines.registry import engine_for
from schemas.manifest.deployment import DeploymentSpec, SecretRef
from schemas.wire import ClaimOrder, StartOrder

# Where a gang's processes find each other, on the leader's host: below the ports that agents choose from (18000 and up)
# and above those of well-known servers. Which of them follows from instance and epoch, so every rank knows it
# beforehand, and a port that happened to be taken is not tried again by the next epoch.
RENDEZVOUS_PORTS: Final = range(10_000, 18_000)
_ALONE: Final = Layout(gpus=0, memory_mib=0, exclusive=False)


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
    spec: DeploymentSpec,
    *,
    deployment: str,
    deployment_uid: str,
    gpus: Sequence[ClaimLike],
    engine: str = "",
    layout: Layout | None = None,
    gpu_mib: int = 0,
    others_mib: int = 0,
    gang: str = "",
    rank: int = 0,
    leader: str = "",
    need: Need | None = None,
) -> dict[str, Any]:
    """A start order as JSON, with `env_secrets` beside it: secrets are filled in at delivery, never stored.

    Args:
        spec: the revision's spec.
        deployment: its name.
        deployment_uid: its uid.
        gpus: this rank's claims on GPUs in the order in which the process shall see them.
        engine: the one that placement chose; empty: the spec leaves no choice.
        layout: the one that placement chose.
        gpu_mib: memory of the largest of the GPUs, MiB; 0: not known.
        others_mib: most that others have claimed of one of them.
        gang: instance and epoch, the same for all ranks and no other gang.
        rank: of this process in its gang.
        leader: host name or address of the leader's worker, where there are several workers.
        need: the revision's, so that it is started for what its memory was reckoned for.
    """
    spread = layout or _ALONE
    reckoned = None if need is None else next((one for name, one in need.by_engine if name == engine), need)
    launch = Launch(
        gpu_count=len(gpus),
        memory_mib=min((claim.memory_mib for claim in gpus), default=0),
        gpu_mib=gpu_mib,
        others_mib=others_mib,
        exclusive=any(claim.exclusive for claim in gpus),
        need_mib=spread.memory_mib,
        tp=spread.tp,
        pp=spread.pp,
        dp=spread.dp,
        workers=spread.workers,
        rank=rank,
        leader=leader,
        rendezvous_port=rendezvous_port(gang),
        context=None if reckoned is None else reckoned.context,
        sequences=None if reckoned is None else reckoned.sequences_of(spread),
    )
    process = engine_for(spec).chosen(engine).process(spec, launch)
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
        gpus_by_index=process.gpus_by_index,
        request_gauges=process.request_gauges,
    )
    secrets = {name: value.secret for name, value in spec.env.items() if isinstance(value, SecretRef)}
    return {**order.model_dump(mode="json"), "env_secrets": secrets}


def rendezvous_port(gang: str) -> int:
    """The port of `RENDEZVOUS_PORTS` at which the processes of a gang find each other."""
    return RENDEZVOUS_PORTS[zlib.crc32(gang.encode()) % len(RENDEZVOUS_PORTS)]


def _claims(gpus: Iterable[ClaimLike]) -> Iterable[ClaimOrder]:
    return (ClaimOrder(device=c.device, memory_mib=c.memory_mib, exclusive=c.exclusive) for c in gpus)
