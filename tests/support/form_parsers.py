"""How parsers of engines read forms: each returns the values of all parts that it takes for the field `model`."""

import asyncio
import re
from collections.abc import Callable
from email.parser import BytesParser
from typing import Any, Final

from aiohttp import BodyPartReader, MultipartReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader

Parser = Callable[[bytes, bytes], list[bytes]]
_BOUNDARY: Final = re.compile(rb'boundary="?([^";]+)"?')


def of_mail(kind: bytes, body: bytes) -> list[bytes]:
    """As Python's `email` does, which reads parameters for Starlette too: any line ends, any order, encodings."""
    message = BytesParser().parsebytes(b"Content-Type: " + kind + b"\r\n\r\n" + body)
    return [
        bytes(part.get_payload(decode=True) or b"")
        for part in message.walk()
        if not part.is_multipart() and part.get_param("name", header="content-disposition") == "model"
    ]


def of_aiohttp(kind: bytes, body: bytes) -> list[bytes]:
    """As `aiohttp` does: lengths and encodings of parts count, parts may have parts."""

    async def read() -> list[bytes]:
        stream = StreamReader(BaseProtocol(asyncio.get_running_loop()), 2**24)
        stream.feed_data(body)
        stream.feed_eof()
        return await models_in(MultipartReader({"Content-Type": kind.decode("latin-1")}, stream))

    async def models_in(reader: MultipartReader) -> list[bytes]:
        found: list[bytes] = []
        while (part := await reader.next()) is not None:
            if isinstance(part, MultipartReader):
                found += await models_in(part)
            elif isinstance(part, BodyPartReader):
                content = bytes(await part.read(decode=True))
                found += [content] if part.name == "model" else []
        return found

    return asyncio.run(read())


def of_splitting(kind: bytes, body: bytes) -> list[bytes]:
    """As servers in C++ do: semicolons and equals signs split, also within quotes, and names in any case count."""
    boundary = _BOUNDARY.search(kind)
    found = []
    for part in body.split(b"--" + boundary[1])[1:] if boundary else []:
        head, _, content = part.partition(b"\r\n\r\n")
        for line in re.findall(rb"(?im)^content-disposition[ \t]*:(.*)$", head):
            pairs = [pair.split(b"=") for pair in line.split(b";") if b"=" in pair]
            names = [pair[-1].strip(b' "\r').lower() for pair in pairs if pair[0].strip(b' "').lower() == b"name"]
            found += [content.removesuffix(b"\r\n") for name in names if name.split(b"[")[0] == b"model"]
    return found


def of_searching(kind: bytes, body: bytes) -> list[bytes]:
    """As the loosest scripts do: any line end, and whatever looks like the name somewhere in a head."""
    boundary = _BOUNDARY.search(kind)
    found = []
    for part in re.split(rb"\r?\n?--" + re.escape(boundary[1]), body)[1:] if boundary else []:
        head, _, content = part.replace(b"\r\n", b"\n").partition(b"\n\n")
        if re.search(rb'(?i)[;\s]name\*?\d?\*?\s*=\s*"?(?:utf-8\'\')?model["\s;[]', head + b"\n"):
            found.append(content)
    return found


PARSERS: Final[dict[str, Parser]] = {
    "email": of_mail,
    "aiohttp": of_aiohttp,
    "splitting": of_splitting,
    "searching": of_searching,
}


def readings(kind: bytes, body: bytes) -> dict[str, Any]:
    """What each parser makes of a form."""
    return {name: parse(kind, body) for name, parse in PARSERS.items()}
