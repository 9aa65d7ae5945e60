"""Kept commits of models: fetched by the commit, served from the cache where the hub no longer has it, else named."""

import pytest
from msgspec.structs import replace

from agent.model_cache.fetch_errors import FetchError
from agent.model_cache.hub_layout import with_snapshots
from schemas.exit_causes import Cause, cause_of_failed_start
from schemas.wire import ModelFetch
from support.standins.cache_host import REPO, Host
from support.standins.controller import start_order
from support.standins.download_hub import COMMIT, DownloadHub

KEPT = ModelFetch(repo=REPO, revision=COMMIT, name="main")
MOVED = "d" * 40


async def test_a_commit_is_also_found_by_the_name_that_was_asked_for(host: Host, hub: DownloadHub) -> None:
    assert await host.provide(KEPT)
    assert (host.folder.path / "models--org--model" / "refs" / "main").read_text() == COMMIT
    hub.down = True
    assert not await host.provide(), "main is in the cache"


async def test_a_kept_commit_takes_no_name_from_a_newer_one(host: Host, hub: DownloadHub) -> None:
    hub.commits[REPO] = MOVED
    await host.provide()
    hub.commits[REPO] = COMMIT
    await host.provide(KEPT)
    assert (host.folder.path / "models--org--model" / "refs" / "main").read_text() == MOVED


async def test_a_commit_that_the_hub_lost_is_served_from_the_cache(host: Host, hub: DownloadHub) -> None:
    await host.provide(KEPT)
    hub.commits[REPO] = MOVED
    assert not await host.provide(KEPT), "the server must not ask the hub for it"
    assert host.snapshot().is_dir()
    assert not await host.provide(KEPT), "the cache keeps its reader"


async def test_a_commit_that_nothing_has_gives_a_reason_of_its_own(host: Host, hub: DownloadHub) -> None:
    hub.commits[REPO] = MOVED
    with pytest.raises(FetchError, match="restart NAME --pull") as caught:
        await host.provide(KEPT)
    assert cause_of_failed_start(str(caught.value)) is Cause.MODEL_COMMIT_GONE
    with pytest.raises(FetchError) as unknown:
        await host.provide(ModelFetch(repo=REPO, revision="v9"))
    assert cause_of_failed_start(str(unknown.value)) is Cause.MODEL_NOT_FOUND, "a branch that never was has no commit"


async def test_a_lost_commit_is_for_tokens_that_could_read_it(host: Host, hub: DownloadHub) -> None:
    hub.tokens[REPO] = {"good", "late"}
    await host.provide(KEPT, token="good")
    hub.commits[REPO] = MOVED
    assert not await host.provide(KEPT, token="good")
    with pytest.raises(FetchError):
        await host.provide(KEPT, token="late")


@pytest.mark.parametrize(
    "commit",
    ["", "main", "/nowhere/x", "../../../x", "a" * 39, "A" * 40, "a" * 40 + "/..", "a" * 40 + "\n", "\u0663" * 40],
)
async def test_a_hub_names_no_place_on_the_host(host: Host, hub: DownloadHub, commit: str) -> None:
    """A mirror answers what it likes, and the fetch may run as root."""
    hub.commits[REPO] = commit
    before = sorted(host.folder.path.parent.rglob("*"))
    with pytest.raises(FetchError, match="commit"):
        await host.provide()
    outside = [path for path in host.folder.path.parent.rglob("*") if host.folder.path not in (path, *path.parents)]
    assert [path for path in outside if path not in before] == []
    assert not list(host.folder.path.glob("models--*/snapshots/*"))


async def test_a_commit_may_be_a_sha_256(host: Host, hub: DownloadHub) -> None:
    hub.commits[REPO] = "e" * 64
    assert await host.provide()


def test_an_adapter_is_named_by_the_folder_of_its_commit(host: Host) -> None:
    order = start_order("vllm", "serve", "org/model", "--lora-modules", "a=org/lora", "b=/local", "c=org/lora")
    lora = ModelFetch(repo="org/lora", revision=COMMIT, by_folder=True)
    placed = with_snapshots(replace(order, fetches=(lora,)), host.folder.path)
    folder = host.folder.path / "models--org--lora" / "snapshots" / COMMIT
    assert placed.argv[4:] == (f"a={folder}", "b=/local", f"c={folder}")
    assert with_snapshots(order, host.folder.path) is order
