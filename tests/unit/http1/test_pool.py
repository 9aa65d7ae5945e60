"""Connections that a pool makes."""

import asyncio
import socket
from pathlib import Path

import pytest
import uvloop

from http1.pool import ConnectError, Pool


def test_a_unix_socket_with_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    """As with TCP: the kernel refuses such a connection at once, but the listener is there."""
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_connect_to(path, listener))


async def _connect_to(path: str, listener: socket.socket) -> None:
    with pytest.raises(ConnectError, match="in time"):
        await Pool(connect_s=0.2).connect(path)
    pool = Pool(connect_s=30.0)
    connecting = asyncio.create_task(pool.connect(path))
    await asyncio.sleep(0.1)
    assert not connecting.done()
    listener.accept()[0].close()
    await connecting
    assert pool.open == 1
    pool.close()
    await asyncio.sleep(0)
