"""Aliases and adapters: each name under which requests ask for a model belongs to one deployment."""

import asyncio
from typing import Any

import pytest

from controller.store.core.database import Database
from controller.store.deployments import apply as deployments
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.problems import ManifestError
from support.builders.apply import apply_spec


def spec(*aliases: str, adapters: tuple[str, ...] = ()) -> DeploymentSpec:
    serving = {"aliases": list(aliases), "adapters": {name: f"path:/lora/{name}" for name in adapters}}
    return DeploymentSpec.model_validate({"engine": "simulated", "serving": serving})


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
    assert "'gpt-4o-mini' is an alias of deployment 'a' already" in message
    assert (await refused(migrated, "b", spec("a")))[0] == "serving.aliases"
    assert (await refused(migrated, "more", spec()))[0] == "name"
    assert (await refused(migrated, "c", spec("c")))[1] == "'c' is the deployment's own name; remove it"


async def test_an_alias_is_free_again_once_it_is_dropped_or_its_deployment_deleted(migrated: Database) -> None:
    await apply_spec(migrated, "a", spec("x", "y"))
    await apply_spec(migrated, "a", spec("y"))
    await apply_spec(migrated, "b", spec("x"))
    await deployments.delete(migrated, "a")
    await apply_spec(migrated, "c", spec("y"))


@pytest.mark.parametrize(
    ("first", "name", "second", "path"),
    [
        (spec(adapters=("x",)), "b", spec(adapters=("x",)), "serving.adapters"),
        (spec(adapters=("x",)), "b", spec("x"), "serving.aliases"),
        (spec("x"), "b", spec(adapters=("x",)), "serving.adapters"),
        (spec(), "b", spec(adapters=("a",)), "serving.adapters"),
        (spec(adapters=("b",)), "b", spec(), "name"),
    ],
)
async def test_an_adapters_name_belongs_to_one_deployment(
    migrated: Database, first: DeploymentSpec, name: str, second: DeploymentSpec, path: str
) -> None:
    await apply_spec(migrated, "a", first)
    found, message = await refused(migrated, name, second)
    assert found == path
    assert "of deployment 'a' already; choose another one" in message


@pytest.mark.parametrize("bringing", [spec("x"), spec(adapters=("x",))])
async def test_of_two_that_take_a_name_at_once_one_is_refused(migrated: Database, bringing: DeploymentSpec) -> None:
    for n in range(8):
        taken = f"x{n}"
        given = spec(
            *(taken for _ in bringing.serving.aliases), adapters=tuple(taken for _ in bringing.serving.adapters)
        )
        outcomes = await asyncio.gather(
            apply_spec(migrated, f"a{n}", given), apply_spec(migrated, taken, spec()), return_exceptions=True
        )
        assert [type(one) for one in outcomes if isinstance(one, BaseException)] == [ManifestError]
