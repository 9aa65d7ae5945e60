"""Examples have no deadline: on a busy machine one may take long. Readers of untrusted files get theirs in rounds."""

import pytest
from hypothesis import settings

from support.profiles import READER_ROUNDS

settings.register_profile("busy", deadline=None)
settings.load_profile("busy")


@pytest.fixture(params=range(READER_ROUNDS))
def reader_round(request: pytest.FixtureRequest) -> int:
    """The number of the round."""
    return int(request.param)
