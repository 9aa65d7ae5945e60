"""A hub with a model, over real HTTP, and a host that fetches from it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.standins.cache_host import FILES, REPO, Host
from support.standins.download_hub import DownloadHub, running_download_hub


@pytest.fixture
def hub() -> Iterator[DownloadHub]:
    with running_download_hub(DownloadHub(repos={REPO: FILES, "org/other": {"config.json": b"{}"}})) as running:
        yield running


@pytest.fixture
async def host(tmp_path: Path, hub: DownloadHub) -> AsyncIterator[Host]:
    made = Host(tmp_path / "cache", hub)
    yield made
    await made.fetches.aclose()
