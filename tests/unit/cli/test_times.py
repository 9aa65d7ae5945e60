"""Tables have ages; `-o wide` adds the times in the reader's zone."""

import re
from datetime import UTC, datetime

import pytest

from cli.objects.kinds import EVENTS, GATEWAYS, KEYS, KINDS, SECRETS, TOKENS
from support.builders.api_objects import deployment, instance, now_text, policy, worker

TIME = re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b")


@pytest.fixture
def filled(api):
    chat = deployment("chat")
    api.add(chat, instance(chat), worker("gpu-a1", last_seen=now_text(5)), policy("idle"))
    api.objects["events"]["1"] = {"id": 1, "at": now_text(60), "reason": "running", "message": "m", "objects": []}
    of_key = {"created_at": now_text(90), "expires_at": now_text(-90)}
    api.objects["keys"]["k"] = {"id": "k", "name": "ann", "role": "viewer", **of_key}
    api.objects["tokens"]["t"] = {"id": "t", "uses": 0, "max_uses": 1, **of_key}
    return api


@pytest.mark.parametrize("kind", ["deployments", "instances", "workers", "policies", "events", "keys", "tokens"])
@pytest.mark.usefixtures("filled")
def test_times_are_in_wide_alone(gpuward, kind):
    plain, wide = gpuward("get", kind), gpuward("get", kind, "-o", "wide")
    assert plain.exit_code == wide.exit_code == 0
    assert not TIME.search(plain.stdout)
    assert TIME.search(wide.stdout)


def test_a_time_is_in_the_zone_of_the_reader(gpuward, filled):
    filled.objects["deployments"]["chat"]["created_at"] = "2026-01-02T03:04:05+00:00"
    expected = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).astimezone()
    assert f"{expected:%Y-%m-%d %H:%M:%S}" in gpuward("get", "deployments", "-o", "wide").stdout


@pytest.mark.parametrize("kind", [*KINDS, EVENTS, KEYS, TOKENS, SECRETS, GATEWAYS], ids=lambda kind: kind.plural)
def test_titles_are_distinct(kind):
    titles = [column.title for column in kind.columns]
    assert len(set(titles)) == len(titles)
    ranks = [column.rank for column in kind.columns if column.rank]
    assert len(set(ranks)) == len(ranks), "which column leaves first must be certain"
