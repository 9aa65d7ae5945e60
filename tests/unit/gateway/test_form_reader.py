"""Forms, read piece by piece: where their model stands, and what is refused."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bodies.form_reader import FormReader, is_form, model_part
from gateway.bodies.parameters import BadRequestError

TYPE = b"multipart/form-data; boundary=XX"
MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\nchat'
FILE = b'Content-Disposition: form-data; name="file"; filename="model"\r\nContent-Type: audio/wav\r\n\r\n'


def form(*parts: bytes, boundary: bytes = b"XX", end: bytes = b"--") -> bytes:
    return b"".join(b"--%b\r\n%b\r\n" % (boundary, part) for part in parts) + b"--" + boundary + end + b"\r\n"


def read(body: bytes, sizes: list[int] | None = None, kind: bytes = TYPE) -> FormReader:
    reader, at = FormReader(kind), 0
    for size in sizes or []:
        reader.feed(body[at : at + size])
        at += size
    reader.feed(body[at:])
    return reader


@given(st.lists(st.integers(1, 40), max_size=60), st.booleans(), st.binary(max_size=200))
def test_the_model_is_found_however_the_form_is_cut(sizes: list[int], first: bool, content: bytes) -> None:
    content = content.replace(b"--XX", b"") + b"\r\n--X\r\n-"
    body = form(*((MODEL, FILE + content) if first else (FILE + content, MODEL)))
    found = read(body, sizes)
    found.end()
    assert found.model == "chat"
    start, end = found.span
    assert body[start:end] == MODEL == model_part("chat")


@pytest.mark.parametrize(
    ("body", "kind", "model"),
    [
        (form(MODEL, boundary=b"a b"), b'multipart/form-data; boundary="a b"', "chat"),
        (form(MODEL), b"Multipart/Form-Data; charset=utf-8; BOUNDARY=XX", "chat"),
        (
            form(b"content-type: text/plain\r\nCONTENT-DISPOSITION:form-data;name=model\r\n\r\norg/name"),
            TYPE,
            "org/name",
        ),
        (form(b'Content-Disposition: form-data; name="models"\r\n\r\nx', MODEL), TYPE, "chat"),
        (form(MODEL, end=b""), TYPE, "chat"),
        (b"", TYPE, None),
    ],
)
def test_names_of_fields_and_boundaries(body: bytes, kind: bytes, model: str | None) -> None:
    assert read(body, kind=kind).model == model


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (form(MODEL, MODEL), "model: must be given once"),
        (form(MODEL, FILE + b"x" * 5000, MODEL), "model: must be given once"),
        (form(MODEL[:-4]), "model: is required"),
        (form(MODEL[:-4] + b"\xff"), "model: must be UTF-8"),
        (form(MODEL + b"x" * 2000), "model: must have at most 1024 bytes"),
        (b"--XX\r\n" + b"a" * 20_000, "body: a part of the form has a head of more than"),
        (b"--XX\r\n" + b"a" * 20_000 + b"\r\n\r\n", "body: a part of the form has a head of more than"),
        (form(*[FILE] * 1001), "body: the form has more than 1000 parts"),
    ],
)
def test_what_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        read(body, [7] * 50)


@pytest.mark.parametrize("kind", [b"multipart/form-data", b"Multipart/Form-Data ; x=y"])
def test_a_form_needs_a_boundary(kind: bytes) -> None:
    assert is_form(kind)
    with pytest.raises(BadRequestError, match="boundary"):
        FormReader(kind)


@pytest.mark.parametrize("kind", [b"", b"multipart/form-data-x; boundary=XX", b"x/y; multipart/form-data"])
def test_other_types_are_no_forms(kind: bytes) -> None:
    assert not is_form(kind)


def test_a_large_file_passes_in_linear_time() -> None:
    reader = FormReader(TYPE)
    reader.feed(form(MODEL, end=b"")[:-2] + b"\r\n" + FILE)
    for _ in range(480):
        reader.feed(b"\r" * 65_536)
    reader.feed(b"\r\n--XX--\r\n")
    reader.end()


BOUNDARY = b"-" * 60 + b"X"
DASHES = b"multipart/form-data; boundary=" + BOUNDARY
OPEN = form(MODEL, end=b"") + FILE
DASHES_OPEN = OPEN.replace(b"XX", BOUNDARY)
# The type, the bytes of a piece, and what comes in pieces.
SHAPES: dict[str, tuple[bytes, int, Callable[[int], bytes]]] = {
    "a head in bytes": (TYPE, 1, lambda times: b"--XX\r\nContent-Type:" + b"\r" * 70 * times),
    "a content in bytes": (TYPE, 1, lambda times: OPEN + b"\r\n--X" * 200 * times),
    "dashes": (DASHES, 4096, lambda times: DASHES_OPEN + b"-" * 5000 * times),
    "line ends and dashes": (DASHES, 4096, lambda times: DASHES_OPEN + b"\r\n--" * 5000 * times),
    "parts in one piece": (TYPE, 2**30, lambda times: form(MODEL, *[FILE] * 4 * times)),
    "parts before a file": (TYPE, 2**30, lambda times: form(MODEL, *[FILE] * 4 * times, FILE + bytes(20_000 * times))),
}


def seconds(kind: bytes, body: bytes, size: int) -> float:
    reader, began = FormReader(kind), time.process_time()
    for at in range(0, len(body), size):
        reader.feed(body[at : at + size])
    return time.process_time() - began


@pytest.mark.parametrize(("kind", "size", "make"), SHAPES.values(), ids=SHAPES.keys())
def test_twice_the_bytes_take_no_more_than_thrice_the_time(
    kind: bytes, size: int, make: Callable[[int], bytes]
) -> None:
    half, whole = make(110), make(220)
    assert (
        min(seconds(kind, whole, size) for _ in range(5)) < 3 * min(seconds(kind, half, size) for _ in range(5)) + 0.002
    )
