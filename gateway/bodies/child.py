"""Reads one body in a process of its own: from stdin to its end, the answer to stdout.

The answer is a line of JSON, and behind it the body without the values that may be changed.
"""

import sys
from hashlib import sha256
from typing import Final

import msgspec

from gateway.bodies.json_body import LONGEST_CHANGED, read_json, split_values
from gateway.bodies.parameters import BadRequestError, Parameters
from gateway.bodies.prompt_text import prompt_bytes

CHANGED: Final = ("model", "stream_options")  # values that the gateway may change


class ChildAnswer(msgspec.Struct):
    """The result for a body. `error`: why it cannot be routed, if so; `param`: the field at fault."""

    error: str = ""
    param: str = ""
    parameters: Parameters | None = None
    values: dict[str, bytes] = {}
    digest: bytes = b""
    prompt_bytes: int = 0


def answered(body: bytes) -> tuple[ChildAnswer, bytes]:
    """The answer, and the body without the values that may be changed."""
    try:
        parameters = read_json(body)
    except BadRequestError as error:
        return ChildAnswer(error=str(error), param=error.param), b""
    rest, values = split_values(body, CHANGED)
    parameters = parameters._replace(model=parameters.model[:LONGEST_CHANGED])  # no deployment has a longer name
    return ChildAnswer("", "", parameters, values, sha256(body).digest(), prompt_bytes(body)), rest


def main() -> None:
    """Answers for one body."""
    answer, rest = answered(sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.write(rest)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
