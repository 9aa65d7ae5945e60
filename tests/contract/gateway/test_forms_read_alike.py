"""Forms: the gateway refuses one, or every parser behind it reads the same one model in what goes on to the engine."""

import json
from typing import Final

import aiohttp
import httpx2
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from gateway.bodies.engine_controls import CONTROLS
from gateway.bodies.form_grammar import media_type
from gateway.bodies.form_reader import FormReader, model_part
from gateway.bodies.parameters import BadRequestError
from support.form_parsers import PARSERS, readings

TYPE: Final = b"multipart/form-data; boundary=BoUnDaRy"
NAMED: Final = b'Content-Disposition: form-data; name="model"'
MODEL: Final = NAMED + b"\r\n\r\nchat"
FILE: Final = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF'


def form(*parts: bytes, end: bytes = b"--\r\n") -> bytes:
    return b"".join(b"--BoUnDaRy\r\n%b\r\n" % part for part in parts) + b"--BoUnDaRy" + end


def disposition(rest: bytes, value: bytes = b"other") -> bytes:
    return b"Content-Disposition: form-data; " + rest + b"\r\n\r\n" + value


def passed_on(kind: bytes, body: bytes, size: int = 0) -> bytes:
    """What an engine gets of a form that comes in pieces of this size.

    Raises:
        BadRequestError: the gateway refuses it.
    """
    reader = FormReader(kind)
    for at in range(0, len(body), size or len(body) or 1):
        reader.feed(body[at : at + (size or len(body))])
    reader.end()
    start, end = reader.span
    assert reader.model is not None
    return body[:start] + model_part(reader.model) + body[end:]


REFUSED: Final = {
    "two names in one disposition": (form(MODEL, disposition(b'name="x"; name="model"')), "needs one"),
    "the model's name first": (form(MODEL, disposition(b'name="model"; name="x"')), "needs one"),
    "two dispositions": (form(NAMED + b'\r\nContent-Disposition: form-data; name="x"\r\n\r\nchat'), "each once"),
    "two types": (form(NAMED + b"\r\nContent-Type: text/plain\r\nContent-Type: text/plain\r\n\r\nchat"), "each once"),
    "an encoded name": (form(MODEL, disposition(b"name*=utf-8''model")), "needs one"),
    "a continued name": (form(MODEL, disposition(b'name*0="mo"; name*1="del"')), "needs one"),
    "an encoded filename of the model": (form(disposition(b"name=\"model\"; filename*=utf-8''x")), "not a file"),
    "a file named model": (form(disposition(b'name="model"; filename="x"')), "not a file"),
    "a file without a name": (form(MODEL, disposition(b'name="model"; filename=""')), "not a file"),
    "a quote in a quoted name": (form(MODEL, disposition(rb'name="x\"; name=\"model"')), "needs one"),
    "a backslash in a name": (form(MODEL, disposition(rb'name="m\odel"')), "needs one"),
    "a backslash at the end": (form(MODEL, disposition(rb'name="x"; filename="a\"; name="model"')), "needs one"),
    "single quotes": (form(MODEL, disposition(b"name='model'")), "not a valid field"),
    "another disposition": (form(MODEL, b'Content-Disposition: inline; name="model"\r\n\r\nother'), "needs one"),
    "no disposition": (form(MODEL, b"Content-Type: text/plain\r\n\r\nother"), "needs one"),
    "an empty head": (form(MODEL, b"\r\nother"), "each once"),
    "another case": (form(MODEL, disposition(b'name="Model"')), "name the model in the field model"),
    "an array": (form(MODEL, disposition(b'name="model[]"')), "name the model in the field model"),
    "space around the name": (form(MODEL, disposition(b'name=" model"')), "not a valid field"),
    "percent signs": (form(MODEL, disposition(b'name="%6dodel"')), "not a valid field"),
    "two models": (form(MODEL, disposition(b'name="model"')), "must be given once"),
    "two equal models": (form(MODEL, FILE, MODEL), "must be given once"),
    "no model": (form(FILE), "model: is required"),
    "an empty model": (form(NAMED + b"\r\n\r\n"), "model: is required"),
    "a model of two lines": (form(MODEL + b"\r\n"), "must be one line"),
    "a charset of the part": (form(NAMED + b"\r\nContent-Type: text/plain; charset=utf-16\r\n\r\nchat"), "UTF-8"),
    "JSON": (form(NAMED + b'\r\nContent-Type: application/json\r\n\r\n"chat"'), "must be a text"),
    "a charset for all": (form(disposition(b'name="_charset_"', b"utf-16"), MODEL), "_charset_: is not supported"),
    "base64": (form(NAMED + b"\r\nContent-Transfer-Encoding: base64\r\n\r\nY2hhdA=="), "must be binary"),
    "base64 of another part": (form(MODEL, b"Content-Transfer-Encoding: BASE64\r\n" + FILE), "must be binary"),
    "a compressed part": (form(NAMED + b"\r\nContent-Encoding: deflate\r\n\r\nchat"), "each once"),
    "parts in a part": (
        form(MODEL, b"Content-Type: multipart/mixed; boundary=Y\r\n" + FILE + b"\r\n--Y\r\n" + MODEL + b"\r\n--Y--"),
        "must not have parts itself",
    ),
    "a wrong length": (form(NAMED + b"\r\nContent-Length: 2\r\n\r\nchat"), "not the length of its content"),
    "a length of letters": (form(NAMED + b"\r\nContent-Length: -4\r\n\r\nchat"), "must be a number"),
    "a prefix of a delimiter": (form(MODEL, FILE + b"\r\n--BoUnDaRyx\r\n" + NAMED + b"\r\n\r\nother"), "a line end"),
    "a delimiter with space": (form(MODEL, FILE + b"\r\n--BoUnDaRy \r\n" + NAMED + b"\r\n\r\nother"), "a line end"),
    "a delimiter within a line": (form(MODEL, FILE + b"--BoUnDaRy\r\n" + NAMED + b"\r\n\r\nother"), "inside a part"),
    "a delimiter behind LF": (form(MODEL, FILE + b"\n--BoUnDaRy\r\n" + NAMED + b"\r\n\r\nother"), "inside a part"),
    "a delimiter in a head": (form(MODEL, disposition(b'name="x"; filename="--BoUnDaRy"')), "inside a part"),
    "no content": (form(b"", MODEL), "each once"),
    "a preamble": (b"x\r\n" + form(MODEL), "must begin with"),
    "a line end before": (b"\r\n" + form(MODEL), "must begin with"),
    "space before the colon": (form(b'Content-Disposition : form-data; name="model"\r\n\r\nchat'), "each once"),
    "LF alone": (form(MODEL).replace(b"\r\n", b"\n"), "a line end"),
    "LF alone in a head": (form(NAMED + b"\nX: y\r\n\r\nchat"), "each once"),
    "CR alone in a head": (form(NAMED + b"\rX: y\r\n\r\nchat"), "each once"),
    "NUL in a head": (form(b'Content-Disposition: form-data; name="model\0"\r\n\r\nchat'), "each once"),
    "a folded line": (form(b'Content-Disposition: form-data;\r\n name="model"\r\n\r\nchat'), "each once"),
    "a part after the end": (form(MODEL) + form(disposition(b'name="model"')), "has bytes after the end"),
    "text after the end": (form(MODEL, end=b"--x"), "has bytes after the end"),
    "no end": (form(MODEL, end=b""), "breaks off"),
    "no whole end": (form(MODEL, end=b"-"), "breaks off"),
    "a name within a file's": (form(MODEL, disposition(b'name="x"; filename="a; name=model"')), "write %22"),
    "a quoted name within a file's": (
        form(MODEL, disposition(rb'name="x"; filename="a\"; name=\"model\"; b"')), "write %22"
    ),
    "a name behind a closing quote": (
        form(MODEL, disposition(rb'name="x"; filename="a\\"; name="model"')), "write %22"
    ),
    "a name with space within a file's": (form(MODEL, disposition(b'name="x"; filename="a; NAME\t= model"')), "%22"),
    "an extended name within a file's": (
        form(MODEL, disposition(b'name="x"; filename="a;name*0*=utf-8\'\'model"')), "write %22"
    ),
    "a file's name without an end": (form(MODEL, disposition(rb'name="x"; filename="a\"')), "write %22"),
    "space around the model": (form(disposition(b'name=" model "'), MODEL), "not a valid field"),
    "the model behind a colon": (form(MODEL, disposition(b'name=":model:x"')), "not a valid field"),
    "a word behind the model": (form(MODEL, disposition(b'name="model x"')), "not a valid field"),
    "the model in quotes": (form(MODEL, disposition(b"name='model'")), "not a valid field"),
    "the model, encoded": (form(MODEL, disposition(b'name="%6dodel"')), "not a valid field"),
    "the model, encoded twice": (form(MODEL, disposition(b'name="+%256dodel"')), "not a valid field"),
    "an engine's request with space": (form(MODEL, disposition(b'name=" request_id "')), "request_id : is not passed"),
    "an engine's request": (form(MODEL, disposition(b'name="request_id"')), "request_id: is not passed on"),
    "an engine's adapter": (form(MODEL, disposition(b'name="lora[0][path]"')), "is not passed on"),
    "an engine's place": (form(MODEL, disposition(b"name=Kv_Transfer_Params; filename=x")), "is not passed on"),
}  # fmt: skip


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_parsers_may_read_otherwise_is_refused(body: bytes, words: str, size: int) -> None:
    with pytest.raises(BadRequestError, match=words) as refused:
        passed_on(TYPE, body, size)
    assert len(str(refused.value).split()) <= 25


@pytest.mark.parametrize("control", sorted(CONTROLS - {"background"}))
def test_controls_of_engines_are_refused_as_in_json(control: str) -> None:
    with pytest.raises(BadRequestError, match=f"{control}: is not passed on to engines") as refused:
        passed_on(TYPE, form(MODEL, disposition(b'name="%b"' % control.encode())))
    assert refused.value.param == control


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (b"multipart/form-data", "needs a boundary"),
        (b"multipart/form-data; boundary=", "no valid parameters"),
        (b'multipart/form-data; boundary=""', "needs a boundary"),
        (b"multipart/form-data; boundary=A; boundary=BoUnDaRy", "one boundary"),
        (b"multipart/form-data; boundary=A; BOUNDARY=BoUnDaRy", "one boundary"),
        (b"multipart/form-data; boundary=BoUnDaRy; charset=utf-8; charset=utf-16", "one charset"),
        (b"multipart/form-data; boundary=BoUnDaRy; charset=utf-16", "charset of a form must be utf-8"),
        (b"multipart/form-data; boundary*=utf-8''A; boundary=BoUnDaRy", "leave out all else"),
        (b"multipart/form-data; xboundary=A; boundary=BoUnDaRy", "leave out all else"),
        (b'multipart/form-data; x="; boundary=A"; boundary=BoUnDaRy', "leave out all else"),
        (b'multipart/form-data; boundary="A\\"B"', "no valid parameters"),
        (b"multipart/form-data; boundary = BoUnDaRy", "no valid parameters"),
        (b"multipart/form-data; boundary=BoUnDaRy, text/plain", "no valid parameters"),
        (b"multipart/form-data, x; boundary=BoUnDaRy", "no valid parameters"),
        (b'multipart/form-data; boundary="A;B"', "needs a boundary"),
        (b'multipart/form-data; boundary="A "', "needs a boundary"),
        (b"multipart/form-data; boundary=" + b"A" * 71, "needs a boundary"),
    ],
)
def test_a_type_that_parsers_may_read_otherwise_is_refused(kind: bytes, words: str) -> None:
    with pytest.raises(BadRequestError, match=words) as refused:
        FormReader(kind)
    assert len(str(refused.value).split()) <= 25


TEXT_FIRST: Final = (
    b'Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name="model"\r\n\r\nchat'
)
SENT: Final = {
    "curl, browsers, Node.js": (TYPE, form(MODEL, FILE)),
    "Node.js before": (TYPE, form(MODEL, FILE, end=b"--\r\n\r\n")),
    "scripts": (TYPE, form(MODEL, FILE, end=b"--")),
    "aiohttp": (TYPE, form(TEXT_FIRST, FILE)),
    ".NET": (
        b'multipart/form-data; boundary="BoUnDaRy"',
        form(
            b"Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=model\r\n\r\nchat",
            b"Content-Disposition: form-data; name=file; filename=a.wav; filename*=utf-8''%C3%A9.wav\r\n\r\nRIFF",
        ),
    ),
    "urllib3 before": (TYPE, form(MODEL, disposition(b"name=\"file\"; filename*=utf-8''%C3%A9.wav"))),
    "OkHttp, Guzzle": (TYPE, form(NAMED + b"\r\nContent-Length: 4\r\n\r\nchat", FILE)),
    "OkHttp on Android": (
        TYPE,
        form(NAMED + b"\r\nContent-Type: multipart/form-data; charset=utf-8\r\nContent-Length: 4\r\n\r\nchat", FILE),
    ),
    "Spring": (
        b"multipart/form-data;boundary=BoUnDaRy;charset=UTF-8",
        form(NAMED + b"\r\nContent-Type: text/plain;charset=UTF-8\r\nContent-Length: 4\r\n\r\nchat", FILE),
    ),
    "HttpComponents": (
        b"multipart/form-data; boundary=BoUnDaRy; charset=UTF-8",
        form(
            NAMED + b"\r\nContent-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit\r\n\r\nchat",
            b"Content-Transfer-Encoding: binary\r\nContent-Type: audio/wav\r\n" + FILE,
        ),
    ),
    "Dart": (TYPE, form(MODEL.replace(b"Content-D", b"content-d"), b"content-transfer-encoding: binary\r\n" + FILE)),
    "Windows paths": (TYPE, form(MODEL, disposition(rb'name="file"; filename="C:\a b\c.wav"'))),
    "a semicolon in a file's name": (TYPE, form(MODEL, disposition(b'name="file"; filename="a; b=1;c.wav"'))),
    "quotes in a file's name": (TYPE, form(MODEL, disposition(rb'name="file"; filename="say \"hi\"; a.wav"'))),
    "the name of a file alone": (TYPE, form(MODEL, disposition(rb'name="file"; filename="\"; \"name; my name"'))),
    "field names with space and colon": (
        TYPE, form(disposition(b'name="response format: x"'), disposition(b'name="a model:b"'), MODEL)
    ),
    ".NET's bare names": (
        TYPE,
        form(
            disposition(b"name=timestamp_granularities[]", b"word"), disposition(b"name=a+b!$x", b"1"), MODEL,
            disposition(b"name=file; filename=a+b$.wav; filename*=utf-8''a%2Bb%24.wav"),
        ),
    ),
    ".NET's encoded names": (
        TYPE, form(MODEL, disposition(b'name=file; filename="=?utf-8?B?w6kud2F2?="; filename*=utf-8\'\'%C3%A9.wav'))
    ),
    "empty contents": (TYPE, form(MODEL, disposition(b'name="prompt"', b""))),
    "dashes and line ends": (TYPE, form(MODEL, FILE + b"\r\n--BoUnDaR\r\n--\r\n\n--\r")),
    "fields of many names": (TYPE, form(disposition(b'name="timestamp_granularities[]"', b"word"), MODEL)),
    "the background of an image": (TYPE, form(disposition(b'name="background"', b"transparent"), MODEL)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::aiohttp.multipart.BadContentDispositionHeader")  # then it takes no name from it
@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize(("kind", "body"), SENT.values(), ids=SENT.keys())
def test_what_clients_send_passes_and_all_parsers_read_one_model(kind: bytes, body: bytes, size: int) -> None:
    assert readings(kind, passed_on(kind, body, size)) == {name: [b"chat"] for name in PARSERS}


@pytest.mark.filterwarnings("ignore::aiohttp.multipart.BadContentDispositionParam")
def test_an_encoded_filename_may_have_what_react_native_leaves_in_it() -> None:
    body = form(MODEL, disposition(b'name="file"; filename="a (1).m4a"; filename*=utf-8\'\'a%20(1).m4a'))
    assert readings(TYPE, passed_on(TYPE, body)) == {name: [b"chat"] for name in PARSERS}


def test_a_part_may_have_the_type_of_the_form_itself_where_it_has_no_parts() -> None:
    """As some clients on Android write it. Engines that look for parts in it refuse it; none reads a model there."""
    body = form(MODEL, b"Content-Type: multipart/form-data\r\n" + disposition(b'name="prompt"', b"hi"))
    passed = passed_on(TYPE, body)
    others = {name: parse(TYPE, passed) for name, parse in PARSERS.items() if name != "aiohttp"}
    assert others == {name: [b"chat"] for name in others}
    with pytest.raises(ValueError, match="boundary"):
        PARSERS["aiohttp"](TYPE, passed)
    with pytest.raises(BadRequestError, match="parts itself"):
        passed_on(TYPE, body.replace(b"form-data\r\n", b"form-data; Boundary=Y\r\n", 1))


FIELDS: Final = {"model": "chat", "language": "de"}


async def of_aiohttp_client() -> tuple[bytes, bytes]:
    fields = aiohttp.FormData(FIELDS)
    fields.add_field("file", b"RIFF", filename="é a.wav", content_type="audio/wav")
    written = bytearray()

    class Writer:
        async def write(self, data: bytes) -> None:
            written.extend(data)

    payload = fields()
    await payload.write(Writer())  # type: ignore[arg-type]
    return payload.content_type.encode(), bytes(written)


async def of_requests() -> tuple[bytes, bytes]:
    made = requests.Request("POST", "http://x/", data=FIELDS, files={"file": ("é a.wav", b"RIFF", "audio/wav")})
    prepared = made.prepare()
    assert isinstance(prepared.body, bytes)
    return prepared.headers["Content-Type"].encode(), prepared.body


async def of_httpx() -> tuple[bytes, bytes]:
    made = httpx2.Request("POST", "http://x/", data=FIELDS, files={"file": ("é a.wav", b"RIFF", "audio/wav")})
    return made.headers["Content-Type"].encode(), made.read()


async def of_openai() -> tuple[bytes, bytes]:
    import openai  # noqa: PLC0415 - slow in each worker that only collects tests

    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        request.read()
        sent.append(request)
        return httpx2.Response(200, content=json.dumps({"text": "x"}), headers={"Content-Type": "application/json"})

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        api = openai.OpenAI(api_key="k", base_url="http://x/v1", http_client=client)
        api.audio.transcriptions.create(model="chat", file=("é a.wav", b"RIFF"), timestamp_granularities=["word"])
    return sent[0].headers["Content-Type"].encode(), sent[0].content


@pytest.mark.parametrize("send", [of_aiohttp_client, of_requests, of_httpx, of_openai])
async def test_what_installed_clients_send_passes(send) -> None:  # type: ignore[no-untyped-def]
    kind, body = await send()
    assert media_type(kind) == b"multipart/form-data"
    assert model_part("chat") in passed_on(kind, body, 7)


PIECES: Final = st.sampled_from([
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b"\t", b";", b":", b"=", b'"', b"\\", b"'", b"--", b"-", b"\0", b"\xff",
    b"--BoUnDaRy", b"\r\n--BoUnDaRy", b"\r\n--BoUnDaRy--", b"BoUnDaRy", b"\r\n--BoUnDaRy\r\n",
    b"Content-Disposition: form-data; ", b"Content-Disposition:", b"content-disposition", b"form-data", b"; ",
    b"name=", b'name="model"', b"name=model", b'name="x"', b"name*=utf-8''model", b'filename="a"', b"filename=a",
    b"filename*=utf-8''a", b"Content-Type: text/plain", b"Content-Type: multipart/mixed; boundary=Y", b"\r\n--Y\r\n",
    b'filename="a; b"', rb'filename="a\"b"', rb'\"', rb'\"; name="', b"; name=model", b'name="x y:z"', b"%6dodel",
    b"Content-Transfer-Encoding: base64", b"Content-Length: 4", b"model", b"chat", b"other", b"_charset_", b"[]",
])  # fmt: skip
TEXT: Final = st.lists(PIECES, max_size=3).map(b"".join)
OTHER: Final = st.tuples(
    st.sampled_from(
        [
            b'name="x"',
            b'name="file"; filename="a"',
            b"name=x",
            b'name="x y:z"',
            b'name="f"; filename="a; b=c"',
            rb'name="f"; filename="a\"; b\"c"',
        ]
    ),
    TEXT,
)
PARTS: Final = st.lists(OTHER.map(lambda one: disposition(*one)) | st.just(FILE), max_size=2)
CHANGES: Final = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), TEXT), max_size=2)


@pytest.mark.filterwarnings("ignore::aiohttp.multipart.BadContentDispositionHeader")
@given(PARTS, st.sampled_from([MODEL, TEXT_FIRST]), st.integers(0, 2), CHANGES, st.sampled_from([0, 1, 5]))
def test_a_form_with_hostile_pieces_is_refused_or_read_alike(
    parts: list[bytes], model: bytes, before: int, changes: list[tuple[float, int, bytes]], size: int
) -> None:
    body = form(*parts[:before], model, *parts[before:])
    for where, dropped, piece in changes:
        at = int(where * len(body))
        body = body[:at] + piece + body[at + dropped :]
    try:
        passed = passed_on(TYPE, body, size)
    except BadRequestError:
        return
    (read,) = set(map(tuple, readings(TYPE, passed).values()))
    assert len(read) == 1, "every parser reads one model, and the same"
