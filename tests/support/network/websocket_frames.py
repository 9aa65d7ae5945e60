"""A WebSocket client's frames as bytes (RFC 6455, section 5.2; compressed: RFC 7692), also such as no client sends."""

import struct
import zlib

CONTINUATION, TEXT, PING, PONG = 0x0, 0x1, 0x9, 0xA
_MASK = b"\0\0\0\0"
_SHORT, _LONG = 126, 2**16


def frame(kind: int, content: bytes = b"", *, last: bool = True, compressed: bool = False) -> bytes:
    """One frame. `last`: it ends its message; `compressed`: its content is."""
    first = (0x80 if last else 0) | (0x40 if compressed else 0) | kind
    size = len(content)
    if size < _SHORT:
        head = bytes([first, 0x80 | size])
    elif size < _LONG:
        head = bytes([first, 0x80 | 126]) + struct.pack("!H", size)
    else:
        head = bytes([first, 0x80 | 127]) + struct.pack("!Q", size)
    return head + _MASK + content


def deflated(content: bytes) -> bytes:
    """The content of a compressed message."""
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (engine.compress(content) + engine.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\0\0\xff\xff")
