"""What stays in a cache of models and what leaves it: limits, prunes, old revisions, interrupted fetches."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from agent.model_cache.answers import models_of
from agent.model_cache.fetch_errors import FetchError
from schemas.exit_causes import Cause, cause_of_failed_start
from schemas.wire import ModelFetch
from support.standins.cache_host import FILES, LATER, REPO, WANTED, Host, until
from support.standins.download_hub import COMMIT, DownloadHub


async def test_the_longest_unused_makes_room_and_what_runs_stays(tmp_path: Path, hub: DownloadHub) -> None:
    files = {"model.safetensors": os.urandom(500_000)}
    hub.repos |= {f"org/m{n}": files | {"config.json": b"%d" % n} for n in range(4)}
    host = Host(tmp_path, hub, limit_mib=1)
    for n in range(2):
        await host.provide(ModelFetch(repo=f"org/m{n}"))
    host.live = {"j": {"org/m0"}}
    await host.provide(ModelFetch(repo="org/m2"))
    assert {one.repo for one in await host.fetches.room.revisions()} == {"org/m0", "org/m2"}
    host.live = {"j": {"org/m0", "org/m2"}}
    with pytest.raises(FetchError, match=r"needs 488\.3 KiB more in .* --cache-limit is 1 MiB") as refused:
        await host.provide(ModelFetch(repo="org/m3"))
    assert cause_of_failed_start(str(refused.value)) is Cause.NO_DISK_SPACE
    assert {"org/m0", "org/m2"} <= {one.repo for one in await host.fetches.room.revisions()}


async def test_prune_removes_what_no_process_uses(host: Host) -> None:
    foreign = host.folder.path / "models--of--others"
    foreign.mkdir(parents=True)
    await host.provide()
    await host.provide(ModelFetch(repo="org/other"))
    host.live = {"j": {REPO}}
    assert await host.fetches.room.prune((), unused_for_s=3600) == []
    assert [one.repo for one in await host.fetches.room.prune((), unused_for_s=0)] == ["org/other"]
    assert host.snapshot().is_dir()
    host.live = {}
    assert [one.repo for one in await host.fetches.room.prune([REPO], unused_for_s=0)] == [REPO]
    assert not host.snapshot().exists()
    assert foreign.is_dir(), "what Gpuward did not fetch stays"


async def test_what_is_to_be_removed_is_gone_through_once(host: Host) -> None:
    """However many revisions there are."""

    class Named(list[str]):
        times = 0

        def __iter__(self) -> Iterator[str]:
            Named.times += 1
            return super().__iter__()

    await host.provide()
    await host.provide(ModelFetch(repo="org/other"))
    removed = await host.fetches.room.prune(Named([REPO, "org/other"]), unused_for_s=0)
    assert {one.repo for one in removed} == {REPO, "org/other"}
    assert Named.times == 1


async def test_an_old_revision_leaves_by_itself_and_shared_files_stay(tmp_path: Path, hub: DownloadHub) -> None:
    host = Host(tmp_path, hub)
    await host.uses("old")
    await asyncio.sleep(0.02)
    hub.commits[REPO] = LATER
    hub.repos[REPO] = FILES | {"model.safetensors": os.urandom(1_000_000)}
    await host.uses("new")
    (model,) = models_of(await host.fetches.room.revisions(), await host.fetches.uses.used())
    assert [(one.commit, one.names, one.in_use) for one in model.snapshots] == [
        (LATER, ("main",), True),
        (COMMIT, (), True),
    ]
    shared = len(FILES["config.json"]) + len(FILES["sub/tokenizer.json"])
    assert model.size_bytes == 3_000_000 + shared
    assert await host.fetches.room.prune((), 0) == [], "each is used by a process"
    host.live = {"new": {REPO}}
    assert [one.commit for one in await host.fetches.room.prune((), 0)] == [COMMIT]
    assert not host.snapshot().exists()
    for name in WANTED:
        assert (host.snapshot(LATER) / name).read_bytes() == hub.repos[REPO][name]
    assert sum(path.stat().st_size for path in host.snapshot(LATER).parents[1].glob("blobs/*")) == 1_000_000 + shared
    await host.fetches.aclose()


async def test_a_later_revision_that_does_not_fit_leaves_the_cached_one_usable(
    tmp_path: Path, hub: DownloadHub
) -> None:
    hub.repos[REPO] = {"model.safetensors": os.urandom(700_000)}
    host = Host(tmp_path, hub, limit_mib=1)
    await host.provide()
    hub.commits[REPO] = LATER
    hub.repos[REPO] = {"model.safetensors": os.urandom(700_001)}
    assert not await host.provide(), "the process must not fetch it by itself"
    assert [one.commit for one in await host.fetches.room.revisions()] == [COMMIT]


async def test_which_revision_a_process_uses_is_known_after_a_restart(tmp_path: Path, hub: DownloadHub) -> None:
    first = Host(tmp_path, hub)
    await first.uses("old")
    hub.commits[REPO] = LATER
    await first.provide()
    await first.fetches.aclose()
    again = Host(tmp_path, hub)
    again.live = {"old": {REPO}}
    await again.fetches.uses.open()
    hub.repos[REPO] = FILES | {"extra.json": b"{}"}
    used = await again.fetches.uses.used()
    assert used == {(REPO, COMMIT)}
    assert [one.commit for one in await again.fetches.room.prune((), 0)] == [LATER]


async def test_what_an_interrupted_fetch_left_is_counted_and_removed(tmp_path: Path, hub: DownloadHub) -> None:
    host = Host(tmp_path, hub)
    hub.pause_s = 0.03
    first = asyncio.create_task(host.provide())
    await until(lambda: hub.sent >= 500_000)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    (left,) = await host.fetches.room.revisions()
    assert (left.commit, left.size_bytes > 100_000) == ("", True)
    removed: list[str] = []
    async with asyncio.timeout(20):
        while not removed:  # the child that fetches holds its lock until it has ended
            removed = [one.repo for one in await host.fetches.room.prune((), 0)]
            await asyncio.sleep(0.05)
    assert removed == [REPO]
    assert await host.fetches.room.revisions() == []
    assert not host.snapshot().parents[1].exists()


async def test_a_snapshot_that_gpuward_did_not_fetch_stays(tmp_path: Path, hub: DownloadHub) -> None:
    host = Host(tmp_path, hub)
    await host.provide()
    folder = host.snapshot().parents[1]
    (folder / "blobs" / "own").write_bytes(b"own")
    (folder / "snapshots" / LATER).mkdir()
    (folder / "snapshots" / LATER / "x").symlink_to("../../blobs/own")
    assert [one.commit for one in await host.fetches.room.prune((), 0)] == [COMMIT]
    assert (folder / "snapshots" / LATER / "x").read_bytes() == b"own"
    assert await host.fetches.room.prune([f"{REPO}@{LATER}"], 0) == []
