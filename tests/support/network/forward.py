"""Forwards connections: `forward.py LISTEN TARGET`, each of them host:port or the path of a Unix socket.

A Unix socket is a file, so it reaches over network namespaces.
"""

import asyncio
import sys
from contextlib import suppress

_CHUNK = 2**16


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(listen: str, target: str) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if target.startswith("/"):
                there = await asyncio.open_unix_connection(target)
            else:
                there = await asyncio.open_connection(*target.rsplit(":", 1))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))

    if listen.startswith("/"):
        server = await asyncio.start_unix_server(accept, listen)
    else:
        host, port = listen.rsplit(":", 1)
        server = await asyncio.start_server(accept, host, int(port))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
