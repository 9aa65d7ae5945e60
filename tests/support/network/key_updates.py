"""A TLS client that asks for new keys again and again, which no library for Python lets a client do."""

import _ssl
import ctypes
import socket
from ctypes import POINTER, c_char_p, c_int, c_void_p
from typing import Final

_REQUESTED: Final = 1
_SIGNATURES: Final = {
    "TLS_client_method": (c_void_p, ()),
    "SSL_CTX_new": (c_void_p, (c_void_p,)),
    "SSL_CTX_free": (None, (c_void_p,)),
    "SSL_new": (c_void_p, (c_void_p,)),
    "SSL_free": (None, (c_void_p,)),
    "SSL_set_fd": (c_int, (c_void_p, c_int)),
    "SSL_connect": (c_int, (c_void_p,)),
    "SSL_key_update": (c_int, (c_void_p, c_int)),
    "SSL_do_handshake": (c_int, (c_void_p,)),
    "SSL_write": (c_int, (c_void_p, c_char_p, c_int)),
    "SSL_read": (c_int, (c_void_p, POINTER(ctypes.c_char), c_int)),
}


def _library() -> ctypes.CDLL:
    """The OpenSSL with which Python is linked."""
    library = ctypes.CDLL(_ssl.__file__)
    for name, (answer, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = answer, arguments
    return library


def ask_for_keys(port: int, times: int, then: bytes = b"") -> tuple[int, bytes]:
    """Connects, and asks so many times; blocks.

    Returns:
        How often it was possible before the server ended the connection, and what it answered to `then`.
    """
    library = _library()
    context = library.SSL_CTX_new(library.TLS_client_method())
    secure = library.SSL_new(context)
    sent, answer = 0, ctypes.create_string_buffer(4096)
    try:
        with socket.create_connection(("127.0.0.1", port)) as opened:
            opened.settimeout(None)  # as OpenSSL expects it
            assert library.SSL_set_fd(secure, opened.fileno()) == 1
            assert library.SSL_connect(secure) == 1
            while sent < times and library.SSL_key_update(secure, _REQUESTED) == 1:
                if library.SSL_do_handshake(secure) != 1:
                    break
                sent += 1
            got = 0
            if then and library.SSL_write(secure, then, len(then)) == len(then):
                got = library.SSL_read(secure, answer, len(answer))
            return sent, answer.raw[: max(got, 0)]
    finally:
        library.SSL_free(secure)
        library.SSL_CTX_free(context)
