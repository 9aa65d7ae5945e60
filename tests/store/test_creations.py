"""Deployments that are created at the same time: together, each as if alone."""

import asyncio

import pytest

from controller.domain.access.grants import Grant, Power
from controller.store.core.database import Database
from controller.store.core.events import CHANNEL, acting
from controller.store.core.refusals import GenerationConflictError, NotGrantedError
from controller.store.deployments.apply import Applied, apply
from controller.store.deployments.creations import Creations
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.problems import ManifestError
from support.database.ledger import rows

SPEC = DeploymentSpec.model_validate({"engine": "simulated", "resources": {"gpus": 1}})
MANY = 40


POWER = Power("command", Grant.COMMAND, "runs a program on the host")


async def applied(creations: Creations, name: str, spec: DeploymentSpec = SPEC, if_match: int | None = None) -> Applied:
    with acting(f"key:of-{name}", f"request-{name}"):
        lacks = (POWER,) if name.startswith("refused") else ()
        return await creations.apply(
            name, spec, input_hash=f"hash-{name}", if_match=if_match, longest_window_s=3600.0, lacks=lacks
        )


def aliased(*aliases: str) -> DeploymentSpec:
    serving = {"aliases": list(aliases)}
    return DeploymentSpec.model_validate({"engine": "simulated", "resources": {"gpus": 1}, "serving": serving})


async def test_what_arrives_together_is_written_together(migrated: Database) -> None:
    heard: list[str] = []
    listener = await migrated.listen_connection()
    await listener.add_listener(CHANNEL, lambda *told: heard.append(told[3]))
    try:
        creations = Creations(migrated)
        found = await asyncio.gather(*(applied(creations, f"d{n}") for n in range(MANY)))
        await listener.fetchval("select 1")
    finally:
        await listener.close()
    assert [(one.outcome, one.view.name, one.view.generation) for one in found] == [
        ("created", f"d{n}", 1) for n in range(MANY)
    ]
    assert len(await rows(migrated, "select distinct xmin::text from deployments")) == len(heard) == 2
    assert {uid for payload in heard for uid in payload.split()[1:]} == {one.view.uid for one in found}
    revisions = await rows(migrated, "select * from revisions order by deployment_uid")
    assert {(str(r["deployment_uid"]), r["input_hash"], r["actor"]) for r in revisions} == {
        (one.view.uid, f"hash-{one.view.name}", f"key:of-{one.view.name}") for one in found
    }


async def test_each_leaves_what_it_leaves_alone(migrated: Database) -> None:
    """The same rows, event and names, but for its uid."""
    creations = Creations(migrated)
    await applied(creations, "together", aliased("a", "b"))
    with acting("key:of-alone", "request-alone"):
        await apply(migrated, "alone", aliased("c", "d"), input_hash="hash-alone")
    together, alone = [
        (
            dict((await rows(migrated, "select * from deployments where name = $1", name))[0]),
            dict((await rows(migrated, "select * from events where subjects -> 0 ->> 'name' = $1", name))[0]),
        )
        for name in ("together", "alone")
    ]
    uids = [str(row["uid"]) for row, _ in (alone, together)]
    for left, right in zip(together, alone, strict=True):
        for column in left.keys() - {"uid", "name", "spec", "id", "at", "created_at", "changed", "phase_since"}:
            text = str(right[column]).replace("alone", "together").replace(*uids)
            assert str(left[column]) == text, column
    names = await rows(migrated, "select name, deployment_uid from model_names")
    assert {r["name"] for r in names if r["deployment_uid"] == together[0]["uid"]} == {"together", "a", "b"}


async def test_other_applies_go_alone_and_spoil_nothing(migrated: Database) -> None:
    creations = Creations(migrated)
    await applied(creations, "there")
    outcomes = await asyncio.gather(
        *(applied(creations, f"new-{n}") for n in range(5)),
        applied(creations, "there"),
        applied(creations, "there", SPEC.model_copy(update={"priority": 3})),
        applied(creations, "there", if_match=0),
        applied(creations, "twice", if_match=0),
        applied(creations, "twice", if_match=0),
        applied(creations, "refused"),
        applied(creations, "itself", aliased("itself")),
        return_exceptions=True,
    )
    assert [one.outcome for one in outcomes[:5] if isinstance(one, Applied)] == ["created"] * 5
    unchanged, updated, exists, once, again, refused, itself = outcomes[5:]
    assert isinstance(unchanged, Applied)
    assert isinstance(updated, Applied)
    assert {unchanged.outcome, updated.outcome} <= {"unchanged", "updated", "replaced"}
    assert isinstance(exists, GenerationConflictError)
    assert {type(once), type(again)} == {Applied, GenerationConflictError}
    assert isinstance(refused, NotGrantedError)
    assert isinstance(itself, ManifestError)


async def test_one_whose_alias_is_taken_is_told_so_alone(migrated: Database) -> None:
    creations = Creations(migrated)
    await applied(creations, "holder", aliased("wanted"))
    found = await asyncio.gather(
        applied(creations, "first"), applied(creations, "taken", aliased("wanted")), return_exceptions=True
    )
    assert isinstance(found[0], Applied)
    assert isinstance(found[1], ManifestError)
    assert "is an alias of deployment 'holder' already" in str(found[1])


async def test_one_that_gives_up_holds_up_no_other(migrated: Database) -> None:
    creations = Creations(migrated)
    tasks = [asyncio.create_task(applied(creations, f"d{n}")) for n in range(6)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[3].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in found].count(Applied) == 4
    assert isinstance(found[0], asyncio.CancelledError)
    with pytest.raises(asyncio.CancelledError):
        await tasks[3]
    assert (await applied(creations, "d7")).outcome == "created"
