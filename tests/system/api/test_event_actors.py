"""Who did it, through the API: the key's name and the request id that the answer carries."""

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
