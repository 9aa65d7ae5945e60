"""Models of a hub over real HTTP, fetched by the real child into the hub library's layout."""

import asyncio
import errno
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.fetch_errors import FetchError
from schemas.exit_causes import Cause, cause_of_failed_start
from schemas.wire import ModelFetch
from support.processes.small_disk import small_disk
from support.standins.cache_host import FILES, REPO, WANTED, Host, until
from support.standins.download_hub import COMMIT, DownloadHub


async def test_a_model_is_fetched_once_as_the_hubs_library_keeps_it(host: Host, hub: DownloadHub) -> None:
    await asyncio.gather(host.provide(), host.provide(), host.provide())
    found = {str(path.relative_to(host.snapshot())) for path in host.snapshot().rglob("*") if path.is_file()}
    assert found == WANTED, "weights in other formats and pages for people are left out"
    assert all((host.snapshot() / name).read_bytes() == FILES[name] for name in WANTED)
    assert hub.files_asked("model.safetensors") == [""]
    offline = snapshot_download(REPO, cache_dir=host.folder.path, local_files_only=True)
    assert Path(offline) == host.snapshot(), "a server finds it without the hub"
    await host.provide()
    assert hub.files_asked("model.safetensors") == [""], "nothing is fetched twice"
    [model] = await host.fetches.room.revisions()
    assert (model.repo, model.commit, model.names) == (REPO, COMMIT, ("main",))
    assert model.size_bytes == sum(len(FILES[name]) for name in WANTED)
    assert time.time() - model.used_s < 60


async def test_an_interrupted_fetch_goes_on_where_it_was(host: Host, hub: DownloadHub) -> None:
    hub.pause_s = 0.03
    first = asyncio.create_task(host.provide())
    await until(lambda: hub.sent >= 1_000_000)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    hub.pause_s = 0.0
    await host.provide()
    ranges = hub.files_asked("model.safetensors")
    assert ranges[0] == ""
    assert int(ranges[1].removeprefix("bytes=").rstrip("-")) >= 500_000
    assert (host.snapshot() / "model.safetensors").read_bytes() == FILES["model.safetensors"]


async def test_a_cut_connection_is_taken_up_again(host: Host, hub: DownloadHub) -> None:
    hub.breaks_after = 1_000_000
    await host.provide()
    assert len(hub.files_asked("model.safetensors")) == 2
    assert (host.snapshot() / "model.safetensors").read_bytes() == FILES["model.safetensors"]


async def test_a_store_behind_the_hub_gets_no_token_and_its_signature_is_not_told(host: Host, hub: DownloadHub) -> None:
    hub.tokens[REPO] = {"good"}
    hub.store = hub.expired = True
    with pytest.raises(FetchError) as caught:
        await host.provide(token="good")
    assert "secret" not in str(caught.value)
    hub.expired = False
    await host.provide(token="good")
    assert (host.snapshot() / "model.safetensors").read_bytes() == FILES["model.safetensors"]


async def test_a_damaged_file_is_refused_and_fetched_anew(host: Host, hub: DownloadHub) -> None:
    hub.damaged.add("model.safetensors")
    with pytest.raises(FetchError, match=r"model\.safetensors is damaged: its hash is not the hub's") as caught:
        await host.provide()
    assert not caught.value.final, "the hub refuses nothing"
    assert not host.snapshot().exists()
    hub.damaged.clear()
    await host.provide()
    assert (host.snapshot() / "model.safetensors").read_bytes() == FILES["model.safetensors"]


async def test_a_hub_that_limits_requests_is_tried_again(host: Host, hub: DownloadHub) -> None:
    hub.limited = True
    with pytest.raises(FetchError, match="429") as caught:
        await host.provide()
    assert not caught.value.final
    hub.limited = False
    await host.provide()
    assert (host.snapshot() / "model.safetensors").read_bytes() == FILES["model.safetensors"]


async def test_a_disk_that_becomes_full_ends_the_fetch_and_the_rest_follows_later(
    tmp_path: Path, hub: DownloadHub
) -> None:
    hub.pause_s = 0.01
    with small_disk(tmp_path / "disk", mib=4) as disk:
        host = Host(disk.folder, hub)
        fetching = asyncio.create_task(host.provide())
        await until(lambda: hub.sent >= 500_000)
        disk.fill()
        with pytest.raises(FetchError, match="No space left on device") as caught:
            await fetching
        assert not caught.value.final
        assert cause_of_failed_start(str(caught.value)) is Cause.NO_DISK_SPACE
        assert not host.snapshot().exists()
        disk.free()
        await host.provide()
        assert (host.snapshot() / "model.safetensors").read_bytes() == FILES["model.safetensors"]
        assert int(hub.files_asked("model.safetensors")[1].removeprefix("bytes=").rstrip("-")) > 0
        await host.fetches.aclose()


async def test_a_gated_model_is_for_tokens_that_may_read_it(host: Host, hub: DownloadHub) -> None:
    hub.tokens[REPO] = {"good", "better"}
    for token in ("", "bad"):
        with pytest.raises(FetchError, match="is gated: request access on the hub, and set HF_TOKEN") as refused:
            await host.provide(token=token)
        assert cause_of_failed_start(str(refused.value)) is Cause.MODEL_GATED
    await host.provide(token="good")
    with pytest.raises(FetchError, match="is gated"):
        await host.provide(token="bad")
    assert await host.provide(token="good"), "the hub was asked"
    hub.down = True
    assert not await host.provide(token="good"), "the hub knew it when it last answered"
    for token in ("", "bad", "better"):
        with pytest.raises(FetchError, match="cannot be fetched"):
            await host.provide(token=token)
    hub.down = False
    hub.tokens[REPO] = {"better"}
    with pytest.raises(FetchError, match="is gated"):
        await host.provide(token="good")
    hub.down = True
    with pytest.raises(FetchError):
        await host.provide(token="good")


@pytest.mark.parametrize(
    ("model", "words", "code"),
    [
        (ModelFetch(repo="org/none"), "hf:org/none does not exist, or the token may not read it", "model_not_found"),
        (ModelFetch(repo=REPO, revision="v9"), "the hub has no such revision", "model_not_found"),
        (ModelFetch(repo=REPO, revision="../../x"), "cannot be the name of a revision", None),
    ],
)
async def test_what_the_hub_does_not_have_is_said(host: Host, model: ModelFetch, words: str, code: str | None) -> None:
    with pytest.raises(FetchError, match=words) as refused:
        await host.provide(model)
    assert cause_of_failed_start(str(refused.value)) == code


async def test_a_closed_cache_names_whose_account_needs_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_folder: CacheFolder) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(CacheFolder, "prepare", fails)
    with pytest.raises(FetchError, match=f"agent.*uid {os.geteuid()}"):
        await host.provide()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_has_its_own_code(host: Host, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fails(_folder: CacheFolder) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(CacheFolder, "prepare", fails)
    with pytest.raises(FetchError) as refused:
        await host.provide()
    assert cause_of_failed_start(str(refused.value)) is Cause.NO_DISK_SPACE


async def test_progress_is_told_in_bytes(host: Host, hub: DownloadHub) -> None:
    hub.pause_s = 0.02
    await host.provide()
    assert host.told[0].startswith(f"fetching hf:{REPO}: 0 B of 1.9 MiB")


async def test_a_fetch_without_progress_ends(host: Host, hub: DownloadHub) -> None:
    hub.pause_s = 15.0
    with pytest.raises(FetchError, match="no progress for 2 s"):
        await host.provide(stall_s=2.0)


async def test_offline_takes_what_is_there_and_asks_nothing(host: Host, hub: DownloadHub) -> None:
    await host.provide()
    hub.asked.clear()
    other = Host(host.folder.path, hub, offline=True)
    assert not await other.provide()
    with pytest.raises(FetchError, match="is not in the cache, and this agent is offline"):
        await other.provide(ModelFetch(repo="org/other"))
    assert hub.asked == []
