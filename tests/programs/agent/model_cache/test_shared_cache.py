"""Several agents of one host that share a cache of models: one fetch, one limit, and marks of what is used."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from agent.model_cache.fetch_errors import FetchError
from schemas.wire import ModelFetch
from support.standins.cache_host import FILES, REPO, Host, until
from support.standins.download_hub import DownloadHub


async def test_two_agents_that_share_a_cache_fetch_a_model_once(tmp_path: Path, hub: DownloadHub) -> None:
    hub.pause_s = 0.01
    agents = [Host(tmp_path, hub, agent=name) for name in "ab"]
    await asyncio.gather(*(one.uses("i") for one in agents))
    assert hub.files_asked("model.safetensors") == [""]
    assert (agents[0].snapshot() / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    told = "\n".join(agents[0].told + agents[1].told)
    assert f"fetching hf:{REPO}: another process of this host does so, " in told


async def test_an_agent_waits_for_another_only_while_that_one_gets_on(tmp_path: Path, hub: DownloadHub) -> None:
    hub.pause_s = 15.0
    first, second = (Host(tmp_path, hub, agent=name) for name in "ab")
    holding = asyncio.create_task(first.provide())
    await until(lambda: hub.sent > 0)
    with pytest.raises(FetchError, match="no progress for 2 s by another process of this host"):
        await second.provide(stall_s=2.0)
    holding.cancel()
    with suppress(asyncio.CancelledError):
        await holding
    hub.pause_s = 0.0
    await second.provide()


async def test_what_another_agents_processes_use_stays_also_while_it_is_down(tmp_path: Path, hub: DownloadHub) -> None:
    hub.repos["org/big"] = {"model.safetensors": os.urandom(900_000)}
    hub.repos["org/second"] = {"model.safetensors": os.urandom(900_000)}
    first = Host(tmp_path, hub, limit_mib=1)
    await first.uses("i", ModelFetch(repo="org/big"))
    await first.fetches.aclose()
    other = Host(tmp_path, hub, limit_mib=1, agent="b")
    with pytest.raises(FetchError, match="does not fit beside what is used"):
        await other.provide(ModelFetch(repo="org/second"))
    assert "org/big" not in {one.repo for one in await other.fetches.room.prune((), 0)}, "no prune removes it either"
    again = Host(tmp_path, hub, limit_mib=1)
    again.live = first.live
    await again.fetches.uses.open()
    again.live = {}
    again.fetches.uses.note_end("i", {"org/big"})
    await again.fetches.aclose()
    await other.provide(ModelFetch(repo="org/second"))
    assert [one.repo for one in await other.fetches.room.revisions()] == ["org/second"]


async def test_a_reboot_ends_what_the_marks_say(tmp_path: Path, hub: DownloadHub) -> None:
    await Host(tmp_path, hub).uses("i")
    other = Host(tmp_path, hub, agent="b", boot_id="boot-2")
    assert [one.repo for one in await other.fetches.room.prune((), 0)] == [REPO]


async def test_two_agents_stay_within_the_limit_together(tmp_path: Path, hub: DownloadHub) -> None:
    hub.repos |= {f"org/m{n}": {"model.safetensors": os.urandom(700_000)} for n in range(2)}
    hub.pause_s = 0.02
    agents = [Host(tmp_path, hub, limit_mib=1, agent=name) for name in "ab"]
    results = await asyncio.gather(
        *(one.provide(ModelFetch(repo=f"org/m{n}")) for n, one in enumerate(agents)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in results) == ["FetchError", "bool"], results
