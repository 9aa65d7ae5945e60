"""What the kernel knows of a connection's other side: whether it has gone, and how much it has yet to take.

Nothing need be read for that. A close is behind the bytes that are not read yet. It arrives where these fit into the
kernel's buffers; a reset always does. So a connection of ours that ends with bytes unsent ends by a reset.
"""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from typing import Final

LOOK_S: Final = 0.05
_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)  # Linux
_CLOSED, _CLOSE_WAIT = 7, 8  # its first byte
_ACKED_AT: Final = 120  # tcpi_bytes_acked, eight bytes
_INFO_BYTES: Final = _ACKED_AT + 8
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


def is_gone(transport: asyncio.BaseTransport) -> bool | None:
    """Whether the other side has closed or reset the connection; None where the system does not report it."""
    opened = transport.get_extra_info("socket")
    if _INFO is None or opened is None:
        return None
    try:
        return opened.getsockopt(socket.IPPROTO_TCP, _INFO, 1)[0] in (_CLOSED, _CLOSE_WAIT)
    except OSError:  # a Unix socket
        return None


def untaken_bytes(transport: asyncio.WriteTransport) -> int:
    """Bytes that were written and not acknowledged; those in the kernel only where the system counts them."""
    opened = transport.get_extra_info("socket")
    ours = transport.get_write_buffer_size()
    if opened is None or opened.family == socket.AF_UNIX or sys.platform != "linux":
        return ours
    try:
        kernels = fcntl.ioctl(opened.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return ours
    return ours + int.from_bytes(kernels, sys.byteorder, signed=True)


def taken_bytes(transport: asyncio.BaseTransport) -> int | None:
    """Bytes that the other side has acknowledged since the beginning; None where the system does not count them."""
    opened = transport.get_extra_info("socket")
    if _INFO is None or opened is None:
        return None
    try:
        info = opened.getsockopt(socket.IPPROTO_TCP, _INFO, _INFO_BYTES)
    except OSError:  # a Unix socket, or closed
        return None
    return int.from_bytes(info[_ACKED_AT:], sys.byteorder) if len(info) == _INFO_BYTES else None


def reset_at_close(transport: asyncio.BaseTransport) -> None:
    """Lets the other side see the end at once when the connection is closed, also where it reads nothing."""
    opened = transport.get_extra_info("socket")
    if opened is not None and opened.family != socket.AF_UNIX:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
