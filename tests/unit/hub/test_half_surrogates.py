"""Half of a surrogate pair, which JSON can name and the database cannot hold, reaches no write."""

import json
from typing import Any

import pytest

from controller.hub.bounds import MalformedMessageError
from controller.hub.validate import parse_message
from support.agent_messages import MESSAGES, changed

HALF = "x\ud800y"


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: str(one["type"]))
def test_no_message_with_one_is_taken_as_it_is(message: dict[str, Any]) -> None:
    refused = 0
    assert parse_message(json.dumps(message))
    for bad in changed(message, lambda _: HALF):
        try:
            taken = parse_message(json.dumps(bad))
        except MalformedMessageError:
            refused += 1
        else:
            taken.model_dump_json().encode()  # raises where one is left
    assert refused
