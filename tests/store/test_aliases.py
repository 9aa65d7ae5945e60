"""Aliases and adapters: each name under which requests ask for a model belongs to one deployment."""

import asyncio
import random
from typing import Any

import pytest

from controller.store.core.database import Database
from controller.store.deployments import verbs
from controller.store.deployments.specs import problems_of_names
from schemas.manifest.deployment import DeploymentManifest, DeploymentSpec
from schemas.manifest.problems import ManifestError, join_path
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
    await verbs.delete(migrated, "a")
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


async def test_two_that_swap_aliases_at_once_are_answered(migrated: Database) -> None:
    for _ in range(8):
        await apply_spec(migrated, "a", spec("x"))
        await apply_spec(migrated, "b", spec("y"))
        outcomes = await asyncio.gather(
            apply_spec(migrated, "a", spec("y")), apply_spec(migrated, "b", spec("x")), return_exceptions=True
        )
        assert {type(one) for one in outcomes if isinstance(one, BaseException)} <= {ManifestError}
        await apply_spec(migrated, "a", spec())
        await apply_spec(migrated, "b", spec())


@pytest.mark.parametrize("seed", range(8))
async def test_plan_finds_the_first_name_that_applies_in_order_find_taken(migrated: Database, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - names, not secrets

    def manifest() -> DeploymentManifest:
        names = chance.sample("abcdef", 4)
        aliases, adapters = names[1 : 1 + chance.randrange(3)], names[3 : 3 + chance.randrange(2)]
        given = spec(*aliases, adapters=tuple(adapters))
        return DeploymentManifest(name=chance.choice(names[:2]), **given.model_dump())

    async def outcome(one: DeploymentManifest) -> str | None:
        try:
            await apply_spec(migrated, one.name, one.spec())
        except ManifestError as error:
            return error.problems[0].path
        return None

    for _ in range(4):
        await outcome(manifest())
    file = {f"manifests[{n}]": manifest() for n in range(4)}
    async with migrated.snapshot() as connection:
        problems = await problems_of_names(connection, {path: (one.name, one.spec()) for path, one in file.items()})
    for path, one in file.items():
        found = await outcome(one)
        if found is not None:
            assert join_path(path, found) in {problem.path for problem in problems}
            return
    assert problems == []
