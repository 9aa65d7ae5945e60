"""Who did it, through the API: the key's name and the request id that the answer carries."""

import json

import pytest

from support.leading.served_api import ServedApi

SPEC = {"engine": "custom", "command": ["true"], "resources": {"gpus": 0}}


@pytest.mark.parametrize(
    ("given", "kept"),
    [("trace-1.a_B", True), (None, False), ("x" * 65, False), ("a b", False), ("a;b", False), ("ä", False)],
)
async def test_a_requests_id_is_taken_or_made_and_its_event_names_key_and_request(
    api: ServedApi, given: str | None, kept: bool
) -> None:
    headers = {"Authorization": f"Bearer {api.keys['admin']}"} | ({} if given is None else {"X-Request-ID": given})
    url = f"{api.url}/api/v1/deployments/d"
    async with api.session.put(url, json=SPEC, headers=headers) as answer:
        assert answer.status == 201, await answer.text()
        id_ = answer.headers["X-Request-ID"]
    assert (id_ == given) is kept
    assert 0 < len(id_) <= 64
    async with api.session.get(f"{api.url}/api/v1/events?object=deployment/d", headers=headers) as answer:
        (event,) = (await answer.json())["items"]
    assert (event["actor"], event["request_id"]) == ("key:admin", id_)
    (subject,) = event["subjects"]
    assert (subject["kind"], subject["name"]) == ("deployment", "d")
    assert event["objects"] == [f"deployment:{subject['uid']}"]


async def events(api: ServedApi, query: str) -> tuple[int, list[str], str]:
    headers = {"Authorization": f"Bearer {api.keys['viewer']}"}
    async with api.session.get(f"{api.url}/api/v1/events?{query}", headers=headers) as answer:
        text = await answer.text()
        return answer.status, [one["reason"] for one in json.loads(text).get("items", [])], text


async def test_events_are_filtered_by_object_reason_and_time(api: ServedApi) -> None:
    headers = {"Authorization": f"Bearer {api.keys['admin']}"}
    for name in ("d", "e"):
        async with api.session.put(f"{api.url}/api/v1/deployments/{name}", json=SPEC, headers=headers) as answer:
            assert answer.status == 201
    for action in ("stop", "start"):
        async with api.session.post(f"{api.url}/api/v1/deployments/d/{action}", headers=headers) as answer:
            assert answer.status == 200
    _, every, _ = await events(api, "deployment=d")
    assert len(every) == 3
    assert await events(api, "subject=deployment/d") == await events(api, "object=deployment/d")
    assert (await events(api, f"deployment=d&reason={every[0]}&reason={every[1]}"))[1] == every[:2]
    assert (await events(api, f"deployment=d&reason={every[0]},{every[1]}"))[1] == every[:2]
    status, body = await api.call("GET", "/api/v1/events?reason=runing,crash&reason=zzzzzzz")
    assert (status, body["error"]["details"]["problems"]) == (400, [
        {"path": "reason", "message": "unknown reason code 'runing'; did you mean 'running'?"},
        {"path": "reason", "message": "unknown reason code 'zzzzzzz'; the page 'Reason codes' of the documentation "
         "lists them"},
    ])  # fmt: skip
    assert (await events(api, "deployment=d&deployment=e"))[1] == []
    assert (await events(api, "deployment=d&after=1h"))[1] == every
    assert (await events(api, "deployment=d&after=2026-01-01T00:00:00%2B01:00"))[1] == every
    assert (await events(api, "deployment=d&after=2999-01-01T00:00:00Z"))[1] == []


@pytest.mark.parametrize("query", ["after=soon", "after=2026-01-01", "after=2026-13-01T00:00:00Z", "subject=d",
                                   "worker=", "&".join(["deployment=d"] * 9)])  # fmt: skip
async def test_wrong_filters_are_refused(api: ServedApi, query: str) -> None:
    status, _, text = await events(api, query)
    assert (status, json.loads(text)["error"]["code"]) == (400, "invalid")
