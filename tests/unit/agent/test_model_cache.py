"""Models of a hub over real HTTP, fetched by the real child into the hub library's layout."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from agent.model_cache.answers import models_of
from agent.model_cache.cache_folder import CacheFolder, folder_name
from agent.model_cache.fetch_process import FetchError
from agent.model_cache.fetches import Fetches
from agent.model_cache.use_marks import UseMarks
from schemas.wire import ModelFetch
from support.processes.small_disk import small_disk
from support.standins.download_hub import COMMIT, DownloadHub, running_download_hub

REPO = "org/model"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": os.urandom(2_000_000),
    "pytorch_model.bin": os.urandom(1000),
    "sub/tokenizer.json": b"{}",
    "README.md": b"read me",
}
WANTED = {"config.json", "model.safetensors", "sub/tokenizer.json"}
MODEL = ModelFetch(repo=REPO)
STALL_S = 20.0
BOOT_ID = "boot-1"
LATER = "d" * 40


@pytest.fixture
def hub() -> Iterator[DownloadHub]:
    with running_download_hub(DownloadHub(repos={REPO: FILES, "org/other": {"config.json": b"{}"}})) as running:
        yield running


class Host:
    """An agent's fetches, for one process that is named `user`."""

    def __init__(
        self, path: Path, hub: DownloadHub, *, limit_mib: int | None = None, offline: bool = False, agent: str = "a"
    ) -> None:
        self.folder = CacheFolder(path)
        self.user = "i"
        self.live: dict[str, set[str]] = {}
        self.fetches = Fetches(
            self.folder,
            limit_mib=limit_mib,
            offline=offline,
            in_use=lambda: self.live,
            marks=UseMarks(self.folder.marks, agent, BOOT_ID),
        )
        self.env = {"HF_ENDPOINT": hub.url, "LD_PRELOAD": "/its/own"}
        self.told: list[str] = []

    async def provide(self, model: ModelFetch = MODEL, token: str = "", stall_s: float = STALL_S) -> bool:
        env = {**self.env, "HF_TOKEN": token} if token else self.env
        async with asyncio.timeout(60):
            return await self.fetches.provide(self.user, model, env, stall_s, self.told.append)

    def snapshot(self, commit: str = COMMIT) -> Path:
        return self.folder.path / folder_name(REPO) / "snapshots" / commit


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - the hub is a thread
            await asyncio.sleep(0.02)


@pytest.fixture
async def host(tmp_path: Path, hub: DownloadHub) -> AsyncIterator[Host]:
    made = Host(tmp_path / "cache", hub)
    yield made
    await made.fetches.aclose()


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
    [model] = await host.fetches.revisions()
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
        assert not host.snapshot().exists()
        disk.free()
        await host.provide()
        assert (host.snapshot() / "model.safetensors").read_bytes() == FILES["model.safetensors"]
        assert int(hub.files_asked("model.safetensors")[1].removeprefix("bytes=").rstrip("-")) > 0
        await host.fetches.aclose()


async def test_a_gated_model_is_for_tokens_that_may_read_it(host: Host, hub: DownloadHub) -> None:
    hub.tokens[REPO] = {"good", "better"}
    for token in ("", "bad"):
        with pytest.raises(FetchError, match="is gated: request access on the hub, and set HF_TOKEN"):
            await host.provide(token=token)
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
    ("model", "words"),
    [
        (ModelFetch(repo="org/none"), "hf:org/none does not exist, or the token may not read it"),
        (ModelFetch(repo=REPO, revision="v9"), "the hub has no such revision"),
        (ModelFetch(repo=REPO, revision="../../x"), "cannot be the name of a revision"),
    ],
)
async def test_what_the_hub_does_not_have_is_said(host: Host, model: ModelFetch, words: str) -> None:
    with pytest.raises(FetchError, match=words):
        await host.provide(model)


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


async def test_the_longest_unused_makes_room_and_what_runs_stays(tmp_path: Path, hub: DownloadHub) -> None:
    files = {"model.safetensors": os.urandom(500_000)}
    hub.repos |= {f"org/m{n}": files | {"config.json": b"%d" % n} for n in range(4)}
    host = Host(tmp_path, hub, limit_mib=1)
    for n in range(2):
        await host.provide(ModelFetch(repo=f"org/m{n}"))
    host.live = {"j": {"org/m0"}}
    await host.provide(ModelFetch(repo="org/m2"))
    assert {one.repo for one in await host.fetches.revisions()} == {"org/m0", "org/m2"}
    host.live = {"j": {"org/m0", "org/m2"}}
    with pytest.raises(FetchError, match=r"needs 488\.3 KiB more in .* --cache-limit is 1 MiB"):
        await host.provide(ModelFetch(repo="org/m3"))
    assert {"org/m0", "org/m2"} <= {one.repo for one in await host.fetches.revisions()}


async def test_prune_removes_what_no_process_uses(host: Host) -> None:
    foreign = host.folder.path / "models--of--others"
    foreign.mkdir(parents=True)
    await host.provide()
    await host.provide(ModelFetch(repo="org/other"))
    host.live = {"j": {REPO}}
    assert await host.fetches.prune((), unused_for_s=3600) == []
    assert [one.repo for one in await host.fetches.prune((), unused_for_s=0)] == ["org/other"]
    assert host.snapshot().is_dir()
    host.live = {}
    assert [one.repo for one in await host.fetches.prune([REPO], unused_for_s=0)] == [REPO]
    assert not host.snapshot().exists()
    assert foreign.is_dir(), "what Gpuward did not fetch stays"


async def uses(host: Host, user: str, model: ModelFetch = MODEL) -> None:
    """A live process of this agent gets a model."""
    host.user = user
    host.live = {**host.live, user: {model.repo}}
    await host.provide(model)


async def test_two_agents_that_share_a_cache_fetch_a_model_once(tmp_path: Path, hub: DownloadHub) -> None:
    hub.pause_s = 0.01
    agents = [Host(tmp_path, hub, agent=name) for name in "ab"]
    await asyncio.gather(*(uses(one, "i") for one in agents))
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
    await uses(first, "i", ModelFetch(repo="org/big"))
    await first.fetches.aclose()
    other = Host(tmp_path, hub, limit_mib=1, agent="b")
    with pytest.raises(FetchError, match="does not fit beside what is used"):
        await other.provide(ModelFetch(repo="org/second"))
    assert "org/big" not in {one.repo for one in await other.fetches.prune((), 0)}, "no prune removes it either"
    again = Host(tmp_path, hub, limit_mib=1)
    again.live = first.live
    await again.fetches.open()
    again.live = {}
    again.fetches.note_end("i", {"org/big"})
    await again.fetches.aclose()
    await other.provide(ModelFetch(repo="org/second"))
    assert [one.repo for one in await other.fetches.revisions()] == ["org/second"]


async def test_a_reboot_ends_what_the_marks_say(tmp_path: Path, hub: DownloadHub) -> None:
    await uses(Host(tmp_path, hub), "i")
    other = Host(tmp_path, hub, agent="b")
    other.fetches._marks = UseMarks(other.folder.marks, "b", "boot-2")
    assert [one.repo for one in await other.fetches.prune((), 0)] == [REPO]


async def test_two_agents_stay_within_the_limit_together(tmp_path: Path, hub: DownloadHub) -> None:
    hub.repos |= {f"org/m{n}": {"model.safetensors": os.urandom(700_000)} for n in range(2)}
    hub.pause_s = 0.02
    agents = [Host(tmp_path, hub, limit_mib=1, agent=name) for name in "ab"]
    results = await asyncio.gather(
        *(one.provide(ModelFetch(repo=f"org/m{n}")) for n, one in enumerate(agents)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in results) == ["FetchError", "bool"], results


async def test_an_old_revision_leaves_by_itself_and_shared_files_stay(tmp_path: Path, hub: DownloadHub) -> None:
    host = Host(tmp_path, hub)
    await uses(host, "old")
    await asyncio.sleep(0.02)
    hub.commits[REPO] = LATER
    hub.repos[REPO] = FILES | {"model.safetensors": os.urandom(1_000_000)}
    await uses(host, "new")
    (model,) = models_of(await host.fetches.revisions(), await host.fetches.used())
    assert [(one.commit, one.names, one.in_use) for one in model.snapshots] == [
        (LATER, ("main",), True),
        (COMMIT, (), True),
    ]
    shared = len(FILES["config.json"]) + len(FILES["sub/tokenizer.json"])
    assert model.size_bytes == 3_000_000 + shared
    assert await host.fetches.prune((), 0) == [], "each is used by a process"
    host.live = {"new": {REPO}}
    assert [one.commit for one in await host.fetches.prune((), 0)] == [COMMIT]
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
    assert [one.commit for one in await host.fetches.revisions()] == [COMMIT]


async def test_which_revision_a_process_uses_is_known_after_a_restart(tmp_path: Path, hub: DownloadHub) -> None:
    first = Host(tmp_path, hub)
    await uses(first, "old")
    hub.commits[REPO] = LATER
    await first.provide()
    await first.fetches.aclose()
    again = Host(tmp_path, hub)
    again.live = {"old": {REPO}}
    await again.fetches.open()
    hub.repos[REPO] = FILES | {"extra.json": b"{}"}
    used = await again.fetches.used()
    assert used == {(REPO, COMMIT)}
    assert [one.commit for one in await again.fetches.prune((), 0)] == [LATER]


async def test_what_an_interrupted_fetch_left_is_counted_and_removed(tmp_path: Path, hub: DownloadHub) -> None:
    host = Host(tmp_path, hub)
    hub.pause_s = 0.03
    first = asyncio.create_task(host.provide())
    await until(lambda: hub.sent >= 500_000)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    (left,) = await host.fetches.revisions()
    assert (left.commit, left.size_bytes > 100_000) == ("", True)
    removed: list[str] = []
    async with asyncio.timeout(20):
        while not removed:  # the child that fetches holds its lock until it has ended
            removed = [one.repo for one in await host.fetches.prune((), 0)]
            await asyncio.sleep(0.05)
    assert removed == [REPO]
    assert await host.fetches.revisions() == []
    assert not host.snapshot().parents[1].exists()


async def test_a_snapshot_that_gpuward_did_not_fetch_stays(tmp_path: Path, hub: DownloadHub) -> None:
    host = Host(tmp_path, hub)
    await host.provide()
    folder = host.snapshot().parents[1]
    (folder / "blobs" / "own").write_bytes(b"own")
    (folder / "snapshots" / LATER).mkdir()
    (folder / "snapshots" / LATER / "x").symlink_to("../../blobs/own")
    assert [one.commit for one in await host.fetches.prune((), 0)] == [COMMIT]
    assert (folder / "snapshots" / LATER / "x").read_bytes() == b"own"
    assert await host.fetches.prune([f"{REPO}@{LATER}"], 0) == []
