"""Why a model that shall run does not: what gateways read of its instances, and what they hold requests for."""

from typing import Any

import pytest

from controller.domain.access.redaction import quote
from controller.store.core.database import Database
from controller.store.deployments.serving import read_serving
from support.database.ledger import add_deployment, add_instance

NOWHERE = {"workers": 1, "rejected": {"need_gt_free": 1}, "message": "0/1 fit: 1 VRAM"}
FREEING = NOWHERE | {"freeing": True}


async def set_up(db: Database, *instances: dict[str, Any]) -> str:
    uid = await add_deployment(db, "m", replicas={"min": 0, "max": 4})
    for n, one in enumerate(instances):
        await add_instance(db, uid, f"m-{n}", phase=one.get("phase", "pending"))
        async with db.transaction() as c:
            await c.execute(
                """update instances set failures = $2, explain = $3, message = $4,
                          not_before = now() + make_interval(secs => $5) where id = $1""",
                f"m-{n}",
                one.get("failures", 0),
                one.get("explain"),
                one.get("message", "why"),
                one.get("again_in_s"),
            )
    return uid


@pytest.mark.parametrize(
    ("instances", "code"),
    [
        ([], None),
        ([{}], None),  # not looked at yet
        ([{"phase": "analyzing"}], None),
        ([{"explain": NOWHERE}], "no_capacity"),
        ([{"explain": FREEING}], None),  # as while its own stop, or its victims', is under way
        ([{"explain": NOWHERE}, {"phase": "starting"}], None),
        ([{"explain": NOWHERE}, {"explain": NOWHERE}], "no_capacity"),
        ([{"phase": "backoff", "failures": 2, "again_in_s": 20}], None),
        ([{"phase": "backoff", "failures": 3, "again_in_s": 20}], "start_failed"),
        ([{"failures": 3, "again_in_s": 20}], "start_failed"),
        ([{"phase": "backoff", "failures": 3, "again_in_s": -1}], None),  # the next attempt begins
        ([{"phase": "starting", "failures": 3, "again_in_s": -5}], None),  # it is under way
        ([{"phase": "failed", "failures": 1}], "start_failed"),
        ([{"failures": 3, "again_in_s": 20}, {"explain": NOWHERE}], "no_capacity"),
    ],
)
async def test_g31_what_keeps_a_model_from_running(
    migrated: Database, instances: list[dict[str, Any]], code: str | None
) -> None:
    await set_up(migrated, *instances)
    async with migrated.snapshot() as c:
        trouble = (await read_serving(c, {})).models["m"].trouble
    assert (trouble.code if trouble is not None else None) == code
    if trouble is not None:
        assert trouble.why == "why"
        assert (15 < trouble.again_in_s <= 20) is (code == "start_failed" and instances[0].get("again_in_s") == 20)


async def test_what_operators_are_answered_has_no_marks_of_quoted_lines(migrated: Database) -> None:
    await set_up(
        migrated, {"phase": "failed", "failures": 1, "message": quote("it ended: no such file", "no such file")}
    )
    async with migrated.snapshot() as c:
        trouble = (await read_serving(c, {})).models["m"].trouble
    assert trouble is not None
    assert trouble.why == "it ended: no such file"
