"""What `explain` reads of a pending instance."""

from dataclasses import dataclass

from controller.domain.need_json import need_from_json
from controller.domain.placement import Need
from controller.store.core.database import Reader
from controller.store.core.refusals import NotFoundError
from controller.store.deployments.specs import spec_from_json
from schemas.api.explain import Explain
from schemas.api.view import from_plain
from schemas.manifest.deployment import DeploymentSpec


@dataclass(frozen=True, slots=True)
class Standing:
    """An instance with its spec and need, and its last explanation."""

    instance: str
    deployment_uid: str
    phase: str
    message: str
    spec: DeploymentSpec
    need: Need | None
    explain: Explain | None


async def standing_of(connection: Reader, instance: str) -> Standing:
    """Reads it.

    Raises:
        NotFoundError: no instance has this id.
    """
    rows = await connection.fetch(
        """select i.id, i.deployment_uid, i.phase, i.message, i.explain, r.spec, r.need
             from instances i join revisions r on r.deployment_uid = i.deployment_uid and r.generation = i.revision
            where i.id = $1""",
        instance,
    )
    if not rows:
        raise NotFoundError(f"no instance is named {instance!r}; `gpuward ps` lists them")
    row = rows[0]
    return Standing(
        instance=row["id"],
        deployment_uid=str(row["deployment_uid"]),
        phase=row["phase"],
        message=row["message"],
        spec=spec_from_json(row["spec"]),
        need=need_from_json(row["need"]) if row["need"] is not None else None,
        explain=from_plain(Explain, row["explain"]) if row["explain"] else None,
    )
