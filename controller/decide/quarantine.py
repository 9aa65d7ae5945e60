"""Whether the connections of one worker contradict each other, so that nothing may be placed or stopped there. Pure.

Two agents with one identity (a copied data folder or a cloned host) take each other's connection over in turn. What one
of them reports is not true of the other, so neither may be believed. An agent that reconnects all the time may be
believed, but cannot be relied on.
"""

import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from controller.domain.workers import RECONNECTS_TOO_OFTEN, TWO_IDENTITIES, HelloSeen, Quarantine

WINDOW_S: Final = 60.0
TAKE_OVERS: Final = 5  # in the window, from one identity to another
RECONNECTS: Final = 5  # in the window; more are too many
LASTS_S: Final = 60.0  # after the last contradiction


def judge(hellos: Sequence[HelloSeen]) -> Quarantine | None:
    """The quarantine that follows from these hellos, the newest last; None if there is none."""
    if not hellos:
        return None
    now = hellos[-1].at
    recent = [hello for hello in hellos if 0 <= (now - hello.at).total_seconds() < WINDOW_S]
    until = now + timedelta(seconds=LASTS_S)
    pairs = itertools.pairwise(recent)
    if sum(older.identity != newer.identity for older, newer in pairs) >= TAKE_OVERS:
        newest = {hello.identity: hello.address for hello in recent}
        return Quarantine(TWO_IDENTITIES, until, tuple(dict.fromkeys(newest.values())))
    if len(recent) - 1 > RECONNECTS:
        return Quarantine(RECONNECTS_TOO_OFTEN, until, (recent[-1].address,))
    return None
