"""Aliases: each name under which requests ask for a model belongs to one deployment."""

from typing import Any

import pytest

from controller.store.core.database import Database
from controller.store.deployments import apply as deployments
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.problems import ManifestError
from support.builders.apply import apply_spec


def spec(*aliases: str) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"engine": "simulated", "serving": {"aliases": list(aliases)}})


async def refused(db: Database, name: str, given: DeploymentSpec) -> Any:
    with pytest.raises(ManifestError) as error:
        await apply_spec(db, name, given)
    (problem,) = error.value.problems
    return problem.path, problem.message


async def test_a_name_belongs_to_one_deployment(migrated: Database) -> None:
    await apply_spec(migrated, "a", spec("gpt-4o-mini", "org/Model"))
    await apply_spec(migrated, "a", spec("gpt-4o-mini", "org/Model", "more"))
    path, message = await refused(migrated, "b", spec("gpt-4o-mini"))
    assert path == "serving.aliases"
    assert "'gpt-4o-mini' is a name of deployment 'a' already" in message
    assert (await refused(migrated, "b", spec("a")))[0] == "serving.aliases"
    assert (await refused(migrated, "more", spec()))[0] == "name"
    assert (await refused(migrated, "c", spec("c")))[1] == "'c' is the deployment's own name; remove it"


async def test_an_alias_is_free_again_once_it_is_dropped_or_its_deployment_deleted(migrated: Database) -> None:
    await apply_spec(migrated, "a", spec("x", "y"))
    await apply_spec(migrated, "a", spec("y"))
    await apply_spec(migrated, "b", spec("x"))
    await deployments.delete(migrated, "a")
    await apply_spec(migrated, "c", spec("y"))
