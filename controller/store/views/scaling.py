"""The autoscaler's numbers as the API shows them, with the condition `DemandKnown`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from controller.domain.scaling import ScalingReason
from controller.domain.wanted import AUTOSCALER, scales
from controller.store.core.database import Reader, view_of
from schemas.api.deployments import IntentView, ScalingStatus
from schemas.api.envelopes import Condition
from schemas.manifest.deployment import DeploymentSpec

DEMAND_KNOWN: Final = "DemandKnown"
_QUERY: Final = """
    select s.*, w.expires_at as awake_until
      from scaling_status s
      left join wakes w on w.deployment_uid = s.deployment_uid and w.source = 'user' and w.expires_at > now()
     where s.deployment_uid = any($1::uuid[])"""


@dataclass(frozen=True, slots=True)
class Scaled:
    """The number of a deployment, and its condition."""

    status: ScalingStatus
    condition: Condition


async def scaled_of(
    connection: Reader, specs: Mapping[Any, DeploymentSpec], intents: Mapping[Any, Sequence[IntentView]]
) -> dict[Any, Scaled]:
    """The numbers of those of these deployments whose replicas follow the requests, once they are decided."""
    uids = [uid for uid, spec in specs.items() if scales(spec)]
    rows = await connection.fetch(_QUERY, uids) if uids else []
    return {
        row["deployment_uid"]: Scaled(
            _status(row, specs[row["deployment_uid"]], intents.get(row["deployment_uid"], ())), _condition(row)
        )
        for row in rows
    }


def _status(row: Any, spec: DeploymentSpec, intents: Iterable[IntentView]) -> ScalingStatus:
    low, high = spec.replica_bounds
    caps = sorted((i.max_replicas, i.source) for i in intents if i.source != AUTOSCALER)
    capped = caps[0][1] if caps and caps[0][0] < row["number"] else ""
    return view_of(ScalingStatus, row, min=low, max=high, capped_by=capped)


def _condition(row: Any) -> Condition:
    unknown = row["reason"] == ScalingReason.DEMAND_UNKNOWN or bool(row["silent"])
    return Condition(
        type=DEMAND_KNOWN,
        status="false" if unknown else "true",
        reason=ScalingReason.DEMAND_UNKNOWN if unknown else "",
        message=_silent(row["silent"]) if unknown else "",
        since=row["at"] if unknown else row["since"],
    )


def _silent(names: Sequence[str]) -> str:
    who = f"gateway {', '.join(names)} does not report" if names else "no gateway reports"
    return f"{who}, so no replica is removed on its account; if it is gone for good: gpuward gateway forget NAME"
