"""Comments in a stream whose model is not there yet, so that clients and proxies on the way do not give up. Pure."""

from typing import Final

FIRST_S: Final = 15.0  # after the request came
EVERY_S: Final = 10.0


def next_comment_s(arrived: float, sent: int) -> float:
    """When the next comment is due, in seconds of the clock of `arrived`, after so many were sent."""
    return arrived + FIRST_S + EVERY_S * sent


def comment(waited_s: float, load_s: float | None, *, waking: bool) -> bytes:
    """The comment.

    Args:
        waited_s: since the request came.
        load_s: how long the model's last start took; None: unknown.
        waking: the model starts; otherwise its replicas are at their limit.
    """
    if not waking:
        return b": waiting for a replica\n\n"
    left_s = None if load_s is None else round(load_s - waited_s)
    if left_s is None or left_s <= 0:
        return b": waking\n\n"
    return b": waking, about %d s\n\n" % left_s
