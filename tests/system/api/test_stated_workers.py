"""The API of what is stated of workers: for administrators alone, and for trusted labels alone."""

import pytest

from controller.store.access.tokens import create_token, redeem
from controller.store.core.database import Database
from support.leading.served_api import ServedApi


async def test_administrators_state_trusted_labels(api: ServedApi, db: Database) -> None:
    await redeem(db, (await create_token(db)).token, "w")
    body = {"labels": {"gpuward.io/zone": "a"}}
    for role in ("operator", "viewer", "inference"):
        assert (await api.call("PATCH", "/api/v1/workers/w", role=role, json=body))[0] == 403
    status, answer = await api.call("PATCH", "/api/v1/workers/w", json=body)
    assert (status, answer["status"]["labels"]) == (200, {"gpuward.io/zone": "a"})
    assert (await api.call("PATCH", "/api/v1/workers/none", json=body))[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        {"labels": {"zone": "a"}},
        {"labels": {"gpuward/driver": "1"}},
        {"labels": {"gpuward.io/x=y": "1"}},
        {"labels": {"gpuward.io/x": "a\nb"}},
        {"labels": {"gpuward.io/x": "a" * 300}},
        {"labels": {f"gpuward.io/{n}": "1" for n in range(65)}},
        {"advertise_networks": ["10.0.0.1/8"]},
        {"advertise_networks": ["gpu-1"]},
    ],
)
async def test_other_statements_are_refused(api: ServedApi, db: Database, body: dict[str, object]) -> None:
    await redeem(db, (await create_token(db)).token, "w")
    for method, path in (("PATCH", "/api/v1/workers/w"), ("POST", "/api/v1/tokens")):
        status, answer = await api.call(method, path, json=body)
        assert (status, answer["error"]["code"]) == (400, "invalid")


async def test_a_token_shows_what_it_is_for(api: ServedApi) -> None:
    body = {"name": "gpu-1", "labels": {"gpuward.io/zone": "a"}, "advertise_networks": ["10.9.0.0/24"]}
    status, made = await api.call("POST", "/api/v1/tokens", json=body)
    assert status == 201
    (listed,) = (await api.get("/api/v1/tokens"))["items"]
    for shown in (made, listed):
        assert {field: shown[field] for field in body} == body
    assert (await api.call("POST", "/api/v1/tokens", json={"name": "gpu-1", "uses": 2}))[0] == 400
