"""What gateways read again and again: parsed once, however many models there are."""

import gc
import time
from typing import Any

import pytest

from controller.live import endpoints
from controller.live.endpoints import Endpoint, EndpointReader
from controller.store.core.database import Database
from controller.store.deployments import serving, specs
from controller.store.deployments.specs import keep_specs_of, spec_from_json
from schemas.manifest.deployment import DeploymentSpec
from support.database.many_models import add_models

FEW, MANY = 750, 1500


class Counted:
    """Counts calls."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.target(*args, **kwargs)


async def read(db: Database, reader: EndpointReader) -> list[Endpoint]:
    async with db.snapshot() as c:
        return (await reader.read(c))[1]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Counted]:
    """The calls that parse limits, read specs, and work out processes."""
    counted = [Counted(serving._limits), Counted(endpoints.read_specs), Counted(endpoints._process)]
    monkeypatch.setattr(serving, "_limits", counted[0])
    monkeypatch.setattr(endpoints, "read_specs", counted[1])
    monkeypatch.setattr(endpoints, "_process", counted[2])
    return counted


async def test_a_second_read_parses_only_what_is_new(migrated: Database, parsed: list[Counted]) -> None:
    await add_models(migrated, 0, 20, replicas=3)
    reader = EndpointReader()
    found = await read(migrated, reader)
    assert len(found) == 60
    assert [one.calls for one in parsed] == [20, 1, 20], "once for a deployment, not for each replica"
    assert await read(migrated, reader) == found
    assert [one.calls for one in parsed] == [20, 1, 20]
    await add_models(migrated, 20, 21)
    assert len(await read(migrated, reader)) == 61
    assert [one.calls for one in parsed] == [21, 2, 21]
    async with migrated.transaction() as c:
        await c.execute(
            "update deployments set spec = jsonb_set(spec, '{serving,aliases}', '[\"b\"]') where name = 'm3'"
        )
    assert {one.limits.aliases for one in await read(migrated, reader) if one.model == "m3"} == {("b",)}
    assert [one.calls for one in parsed] == [22, 2, 21], "limits change in place"
    async with migrated.transaction() as c:
        await c.execute("update deployments set deleted_at = now() where name <> 'm3'")
    assert len(await read(migrated, reader)) == 3
    assert (len(reader._limits), len(reader._processes)) == (1, 1), "what is gone is forgotten"


async def test_a_number_that_the_ledger_lost_and_gave_again_is_another_revision(migrated: Database) -> None:
    await add_models(migrated, 0, 1)
    reader = EndpointReader()
    (before,) = await read(migrated, reader)
    async with migrated.transaction() as c:
        await c.execute(
            """update revisions set created_at = created_at + interval '1 second',
                      spec = jsonb_set(spec, '{model}', '"hf:org/other"')"""
        )
    (after,) = await read(migrated, reader)
    assert (before.request_model, after.request_model) == ("org/m0", "org/other")


async def test_a_spec_that_cannot_be_read_is_not_read_again(migrated: Database, parsed: list[Counted]) -> None:
    await add_models(migrated, 0, 2)
    async with migrated.transaction() as c:
        await c.execute("update revisions set spec = '{\"engine\": 7}' where spec ->> 'model' = 'hf:org/m0'")
    reader = EndpointReader()
    for _ in range(2):
        assert [one.model for one in await read(migrated, reader)] == ["m1"]
    assert parsed[1].calls == 1


async def test_twice_the_models_cost_twice_as_much(migrated: Database) -> None:
    """Also where that is more than the specs that are kept at least."""

    async def cost_s() -> float:
        reader, costs = EndpointReader(), []
        await read(migrated, reader)
        for _ in range(5):
            gc.collect()
            began = time.process_time()
            await read(migrated, reader)
            costs.append(time.process_time() - began)
        return min(costs)

    await add_models(migrated, 0, FEW)
    few = await cost_s()
    await add_models(migrated, FEW, MANY)
    assert await cost_s() < 3 * few


@pytest.fixture
def specs_parsed(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The calls that parse a spec; what is kept is of this test."""
    counted = Counted(specs._parse)
    monkeypatch.setattr(specs, "_parse", counted)
    monkeypatch.setattr(specs, "_PARSED", specs._ParsedSpecs())
    return counted


def test_the_specs_of_all_deployments_are_kept(specs_parsed: Counted) -> None:
    stored = [{"engine": "vllm", "model": f"hf:org/m{n}"} for n in range(2 * MANY)]
    for now in (MANY, 2 * MANY):
        keep_specs_of(now)
        for one in stored[:now]:
            spec_from_json(one)
        before = specs_parsed.calls
        keep_specs_of(now + now // 10)
        assert all(isinstance(spec_from_json(one), DeploymentSpec) for one in stored[:now])
        assert specs_parsed.calls == before, "no second time"
    keep_specs_of(3)
    assert specs._PARSED._size == specs._FEWEST, "with the deployments the room goes"
