"""Every event names what did it, in which request, and its objects by kind, name and uid, also once they are gone."""

import ast
import re
import uuid
from pathlib import Path

import pytest

from controller.domain.events import NewEvent
from controller.store.access.keys import create_key, revoke_key
from controller.store.access.secrets import delete_secret, put_secret
from controller.store.access.tokens import create_token, redeem, revoke_token
from controller.store.core.database import Database
from controller.store.core.events import acting, write_events
from controller.store.deployments.verbs import delete
from controller.store.views.events import list_events
from schemas.api.events import EventView
from schemas.api.view import to_json
from support.database.ledger import add_deployment

CONTROLLER = Path(__file__).parents[2] / "controller"


async def execute(db: Database, query: str) -> None:
    async with db.transaction() as connection:
        await connection.execute(query)


async def events_of(db: Database) -> list[EventView]:
    async with db.snapshot() as connection:
        return (await list_events(connection, limit=100)).items[::-1]


def test_every_statement_that_writes_events_names_actor_request_and_subjects() -> None:
    found = 0
    for file in sorted(CONTROLLER.rglob("*.py")):
        for columns in re.findall(
            r"insert\s+into\s+events\s*\(([^)]*)\)", file.read_text(encoding="utf-8"), re.IGNORECASE
        ):
            found += 1
            named = {column.strip() for column in columns.split(",")}
            assert named >= {"actor", "request_id", "subjects"}, f"{file}: use write_events, or name them"
    assert found == 6


def _events_without_objects() -> list[str]:
    """Places in which an event is made without objects. Those of `decide` get the deployment from the writer."""
    found = []
    for file in sorted(CONTROLLER.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "NewEvent":
                objects = [*node.args[2:3], *(k.value for k in node.keywords if k.arg == "objects")]
                if not objects or (isinstance(objects[0], ast.Tuple) and not objects[0].elts):
                    found.append(f"{file.relative_to(CONTROLLER)}:{node.lineno}")
    return found


def test_every_place_that_makes_an_event_names_its_objects() -> None:
    assert [place for place in _events_without_objects() if not place.startswith("decide/")] == []
    assert _events_without_objects()  # the search finds some


async def test_an_event_without_objects_is_not_written(migrated: Database) -> None:
    with pytest.raises(ValueError, match="names no object"):
        async with migrated.transaction() as connection:
            await write_events(connection, [NewEvent("r", "m")])


async def test_keys_tokens_and_secrets_leave_events_without_their_values(migrated: Database) -> None:
    with acting("key:root", "req-1"):
        spare = await create_key(migrated, "admin", name="spare")
        key = await create_key(migrated, "viewer", name="eve")
        await revoke_key(migrated, key.id)
        await revoke_key(migrated, key.id)  # changes nothing
        used, spoilt = await create_token(migrated), await create_token(migrated)
        await revoke_token(migrated, spoilt.id)
        await put_secret(migrated, "hf", "the-value")
        await delete_secret(migrated, "hf")
    joined = await redeem(migrated, used.token, "gpu-1")
    found = await events_of(migrated)
    assert [e.reason for e in found] == [
        "key_created", "key_created", "key_revoked", "token_created", "token_created", "token_revoked", "secret_set",
        "secret_deleted", "joined",
    ]  # fmt: skip
    assert {(e.actor, e.request_id) for e in found[:-1]} == {("key:root", "req-1")}
    assert (found[-1].actor, found[-1].request_id) == (f"token:{used.id}", "")
    assert [(s.kind, s.name, s.uid) for s in found[2].subjects] == [("key", "eve", key.id)]
    assert [(s.kind, s.name) for s in found[6].subjects] == [("secret", "hf")]
    assert [(s.kind, s.name, s.uid) for s in found[-1].subjects] == [
        ("worker", "gpu-1", joined.worker_uid),
        ("token", used.id, used.id),
    ]
    told = " ".join(to_json(event).decode() for event in found)
    assert not [s for s in (spare.key, key.key, used.token, spoilt.token, "the-value") if s in told]


async def test_subjects_keep_the_names_of_what_is_gone(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    gone = str(uuid.uuid4())
    with acting("key:ann", "req-2"):
        await delete(migrated, "d")
    await execute(migrated, "delete from revisions")
    await execute(migrated, "delete from deployments")
    async with migrated.transaction() as connection:
        await write_events(connection, [
            NewEvent("a", "its last event tells the name", (f"deployment:{uid}", "gpu:GPU-1", "instance:d-1")),
            NewEvent("b", "the event tells the name", (f"deployment:{gone}",), {"deployment": "e"}),
            NewEvent("c", "nothing tells it", (f"worker:{gone}", "worker:not-a-uid", "odd"), actor="agent:x"),
        ])  # fmt: skip
    deleted, first, second, third = await events_of(migrated)
    assert (deleted.actor, deleted.request_id) == ("key:ann", "req-2")
    assert [(s.kind, s.name, s.uid) for s in deleted.subjects] == [("deployment", "d", str(uid))]
    assert [(s.kind, s.name) for s in first.subjects] == [("deployment", "d"), ("gpu", "GPU-1"), ("instance", "d-1")]
    assert (first.actor, second.subjects[0].name) == ("controller", "e")
    assert [(s.name, s.uid) for s in third.subjects] == [("", gone), ("", "not-a-uid"), ("odd", "odd")]
    assert third.actor == "agent:x"


async def test_events_of_earlier_versions_are_still_read(migrated: Database) -> None:
    await execute(migrated, "insert into events (reason, message, objects) values ('old', 'm', array['gpu:G'])")
    (event,) = await events_of(migrated)
    assert (event.objects, event.subjects, event.actor, event.request_id) == (["gpu:G"], [], "", "")
