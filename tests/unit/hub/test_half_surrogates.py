"""Half of a surrogate pair, which JSON can name and the database cannot hold, reaches no write."""

import json
from typing import Any

import msgspec
import pytest

from controller.hub.agent_messages import MalformedMessageError, read_message
from support.agent_messages import MESSAGES, changed

HALF = "x\ud800y"


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: str(one["type"]))
def test_no_message_with_one_is_taken_as_it_is(message: dict[str, Any]) -> None:
    refused = 0
    assert read_message(json.dumps(message))
    for bad in changed(message, lambda _: HALF):
        try:
            taken = read_message(json.dumps(bad))
        except MalformedMessageError:
            refused += 1
        else:
            msgspec.json.encode(taken).decode().encode()  # raises where one is left
    assert refused
