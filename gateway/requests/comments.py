"""Comments in a stream whose model is not there yet, so that clients and proxies on the way do not give up. Pure."""

from typing import Final

FIRST_S: Final = 15.0  # after the request came
EVERY_S: Final = 10.0
# An engine that works on a prompt may send nothing, not even a head, until the first token. It refuses a request as
# soon as that is read. The first comment commits the status, so it waits for the head, or for this time.
UNANSWERED_S: Final = 30.0
STILL: Final = b": the engine works\n\n"


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
