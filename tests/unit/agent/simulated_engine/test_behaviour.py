"""What a prompt may tell the simulated engine, its arguments, and how it reads forms."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agent.simulated_engine.behaviour import Behaviour
from agent.simulated_engine.errors import BadRequestError
from agent.simulated_engine.multipart import read_form
from agent.simulated_engine.options import parse_args


@pytest.mark.parametrize(
    ("prompt", "told"),
    [
        ("nothing to simulate", Behaviour(wait=1)),
        ("[simulate]", Behaviour(wait=1)),
        ("hi [simulate tokens=3 token_seconds=0.5] there", Behaviour(wait=1, tokens=3, token_seconds=0.5)),
        ("[simulate die] ", Behaviour(wait=1, die=0)),
        ("[simulate die=5 wait=0]", Behaviour(die=5)),
        ("[simulate silent cut=2 refuse=503]", Behaviour(wait=1, silent=0, cut=2, refuse=503)),
        ("[simulate usage=no gzip cached=7 id=a-1]", Behaviour(wait=1, usage=False, gzip=True, cached=7, id="a-1")),
        ("[simulate usage=yes gzip=no token_bytes=9]", Behaviour(wait=1, token_bytes=9)),
    ],
)
def test_a_prompt_tells(prompt: str, told: Behaviour) -> None:
    assert Behaviour(wait=1).told(prompt) == told


@pytest.mark.parametrize(
    "words",
    ["explode", "tokens", "tokens=0", "tokens=x", "wait=-1", "wait=nan", "refuse=200", "usage=maybe", "id", "id="],
)
def test_an_unknown_word_or_value_is_refused(words: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        Behaviour().told(f"[simulate {words}]")
    assert words.split("=", maxsplit=1)[0] in str(refused.value)


def test_arguments_of_earlier_versions_stay_valid() -> None:
    """The whole list that version 0.2 knew; its controllers and agents may be in use."""
    old = [
        "--port",
        "1",
        "--model",
        "m",
        "--load-seconds",
        "1",
        "--exit-after",
        "2",
        "--exit-code",
        "3",
        "--ignore-sigterm",
        "--token-seconds",
        "0.5",
    ]
    args = parse_args(old)
    assert (args.port, args.model, args.load_seconds, args.exit_after, args.exit_code) == (1, "m", 1.0, 2.0, 3)
    assert (args.ignore_sigterm, args.token_seconds, args.slots, args.served_model_name) == (True, 0.5, 0, [])


@pytest.mark.parametrize(
    "args", ["--refuse 200", "--slots -1", "--wait-seconds -1", "--lora-modules x", "--token-seconds inf"]
)
def test_invalid_arguments_are_refused(args: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_args(["--port", "1", "--model", "m", *args.split()])
    assert args.split(maxsplit=1)[0] in capsys.readouterr().err


CONTENT = b"\r\n--b\r--b--\r\n-" * 3
BODY = (
    b'preamble\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    + CONTENT.replace(b"--b", b"-b")
    + b'\r\n--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\nepilogue'
)


async def pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64, 1000])
async def test_a_form_in_pieces_of_any_size(size: int) -> None:
    form = await read_form('multipart/form-data; boundary="b"', pieces(BODY, size))
    content = CONTENT.replace(b"--b", b"-b")
    assert form.fields == {"model": "m"}
    assert form.files == [{"name": "file", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", BODY),
        ("multipart/form-data", BODY),
        ("multipart/form-data; boundary=b", BODY[:-20]),
        ("multipart/form-data; boundary=b", b""),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"),
        ("multipart/form-data; boundary=b", b"--b\r\nX: " + b"x" * 20_000),
        ("multipart/form-data; boundary=b", b'--b\r\nX: ; name="a"\r\n\r\n' + b"x" * 1_100_000),
    ],
)
async def test_what_is_not_a_complete_form_is_refused(kind: str, body: Any) -> None:
    with pytest.raises(BadRequestError):
        await read_form(kind, pieces(body, 1000))
