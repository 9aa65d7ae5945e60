"""Options and imports that verbs of daemons share."""

import gc
from contextlib import suppress

from cli.local.options import without_collections


def test_collections_pause_for_imports_alone() -> None:
    with suppress(ImportError), without_collections():
        paused = not gc.isenabled()
        raise ImportError
    assert paused
    assert gc.isenabled()
