"""`gpuward pending`: a line for each pending instance, in the order of the answer."""

import json

import pytest

from support.builders.api_objects import now_text
from support.standins.api import ApiDouble

ITEM = {"deployment": "d", "deployment_uid": "u", "of": 2, "phase": "pending", "priority": 100}


@pytest.fixture
def answer(api: ApiDouble):
    item = {**ITEM, "since": now_text(120), "queued_at": now_text(120)}
    big = {**item, "instance": "big-1", "place": 1, "message": "0/3 fit: 3 VRAM", "reserved_on": ["w1", "w2"]}
    new = {**item, "instance": "new-1", "place": None, "phase": "analyzing", "message": ""}
    api.canned["pending"] = {"at": now_text(), "of": 2, "items": [big, {**new, "instance": "x-1", "place": 2}, new]}
    return api.canned["pending"]


@pytest.mark.usefixtures("answer")
def test_places_and_reservations_are_shown(gpuward):
    lines = [line.split() for line in gpuward("pending").stdout.splitlines()]
    assert lines[0][:4] == ["PLACE", "NAME", "DEPLOYMENT", "PRIORITY"]
    assert " ".join(lines[1]) == "1 of 2 big-1 d 100 2m w1, w2 0/3 fit: 3 VRAM"
    assert lines[2][:4] == ["2", "of", "2", "x-1"]
    assert lines[3][:2] == ["-", "new-1"]


def test_programs_get_the_answer_as_it_is(gpuward, answer):
    assert json.loads(gpuward("pending", "-o", "json").stdout) == answer


def test_nothing_is_pending(gpuward, api):
    api.canned["pending"] = {"at": now_text(), "of": 0, "items": []}
    found = gpuward("pending")
    assert (found.stdout, found.stderr) == ("", "Nothing is pending.\n")
