"""A message may be nested as deeply as an agent likes: it violates the protocol, and nothing else happens."""

import pytest

from controller.hub.agent_messages import MalformedMessageError, read_message

HALF = '"\\ud800"'  # of a surrogate pair
NUL = '"\\u0000"'


@pytest.mark.parametrize("depth", [300, 900, 50_000])
@pytest.mark.parametrize("inner", ["1", NUL, "NaN", HALF])
@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ('{"a":', "}"), ('{"host":', "}"), ('[{"gpus":', "}]")])
@pytest.mark.parametrize("field", ["gpus", "host", "unknown"])
def test_a_deeply_nested_message_is_malformed(depth: int, inner: str, begin: str, end: str, field: str) -> None:
    raw = f'{{"type": "heartbeat", "{field}": {begin * depth}{inner}{end * depth}}}'
    with pytest.raises(MalformedMessageError):
        read_message(raw)
