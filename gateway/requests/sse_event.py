"""The events of a stream as they become whole. However small its pieces are, each byte is searched once. Pure."""

from typing import Final

_LF, _CRLF, _CR = b"\n\n", b"\n\r\n", b"\r\r"  # how events end
_BEFORE: Final = len(_CRLF) - 1  # so many bytes of an end may have come before its last one


class BegunEvent:
    """Holds the event that has begun.

    Attributes:
        held: what has come of it. The caller sets its bound.
    """

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = bytearray()

    def add(self, piece: bytes) -> bytes:
        """The events that are whole with this piece; may be empty."""
        held = self.held
        if not held:
            end = _last_end(piece, 0)
            held += piece[end:]
            return piece[:end]
        begin = max(0, len(held) - _BEFORE)
        held += piece
        end = _last_end(held, begin)
        whole = bytes(held[:end])
        del held[:end]
        return whole

    def take(self) -> bytes:
        """What is held, which is not held any longer."""
        taken, self.held = bytes(self.held), bytearray()
        return taken


def _last_end(data: bytes | bytearray, begin: int) -> int:
    """Where the last event ends that does so behind `begin`; 0: none does."""
    crlf = data.rfind(_CRLF, begin)
    at = max(crlf, data.rfind(_LF, begin), data.rfind(_CR, begin))
    return 0 if at < 0 else at + len(_CRLF if at == crlf else _LF)
