"""What a hub names, and links that another account has put into the cache, lead nowhere outside of it."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.model_cache.beneath import OpenFolder
from agent.model_cache.fetch_errors import FetchError
from agent.model_cache.hub_layout import with_snapshots
from schemas.wire import ModelFetch
from support.standins.cache_host import FILES, REPO, WANTED, Host
from support.standins.controller import start_order
from support.standins.download_hub import COMMIT, DownloadHub

KEPT = "kept"
Picture = dict[str, tuple[int, int, int, str]]


def _picture(folder: Path) -> Picture:
    """Owner, mode, time and content of all that is in a folder."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        one = path.lstat()
        text = path.read_text() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (one.st_uid, one.st_mode, one.st_mtime_ns, text)
    return found


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder next to the cache, with what links could lead to."""
    folder = tmp_path / "outside"
    for name in ("sub", COMMIT, "agents"):
        (folder / name).mkdir(parents=True)
    (folder / "file").write_text(KEPT)
    (folder / "main").write_text(COMMIT)
    (folder / COMMIT / "file").write_text(KEPT)
    return folder


PLANTED: dict[str, Callable[[Path], Path]] = {
    "": lambda out: out,
    "blobs": lambda out: out,
    "snapshots": lambda out: out,
    f"snapshots/{COMMIT}": lambda out: out / COMMIT,
    f"snapshots/{COMMIT}/sub": lambda out: out / "sub",
    "refs": lambda out: out,
    "refs/main": lambda out: out / "file",
}


@pytest.mark.parametrize("name", PLANTED)
async def test_no_fetch_use_or_prune_follows_a_link(
    host: Host, outside: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The owner of a model's folder plants it, before the fetch or after it."""
    monkeypatch.setattr("agent.model_cache.fetch_account.can_fetch_as_another", lambda: False)
    before = _picture(outside)
    model = host.folder.path / "models--org--model"
    place = model / name if name else model
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(PLANTED[name](outside))
    with suppress(FetchError):
        await host.provide()
    assert _picture(outside) == before
    if place.is_symlink():
        place.unlink()
    await host.provide()
    assert (host.snapshot() / "model.safetensors").read_bytes() == FILES["model.safetensors"]

    place.rename(host.folder.path / "aside")
    place.symlink_to(PLANTED[name](outside))
    with suppress(OSError):
        host.folder.note_use(REPO, 1.0, COMMIT)
    await host.fetches.room.prune((), 0)
    assert _picture(outside) == before


@pytest.mark.parametrize("name", [".gpuward", ".gpuward/agents"])
async def test_what_is_noted_is_written_through_no_link(host: Host, outside: Path, name: str) -> None:
    before = _picture(outside)
    place = host.folder.path / name
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    with pytest.raises(FetchError, match="is a link, which is not followed"):
        await host.provide()
    assert _picture(outside) == before


async def test_notes_of_another_account_name_no_place(host: Host, outside: Path) -> None:
    before = _picture(outside)
    await host.provide()
    note = host.folder.path / ".gpuward" / "models--org--model.json"
    climbs = {f"../../../../{outside.name}/main": COMMIT, "v1": f"../../../../{outside.name}/{COMMIT}"}
    note.write_text(note.read_text().replace('"revisions": {', f'"revisions": {str(climbs)[:-1]}, '.replace("'", '"')))
    host.folder.note_use(REPO, 1.0)
    (found,) = await host.fetches.room.revisions()
    assert found.names == ("main",)
    assert host.folder.usable(REPO, "v1", "") is None
    await host.fetches.room.prune((), 0)
    assert _picture(outside) == before


@pytest.mark.parametrize("etag", ["/{}/planted", "../../outside/planted", "a" * 40])
@pytest.mark.parametrize("commit", ["/{}/planted", "../../../outside/planted", "main"])
async def test_a_large_files_headers_name_no_place(
    host: Host, hub: DownloadHub, outside: Path, monkeypatch: pytest.MonkeyPatch, etag: str, commit: str
) -> None:
    """For files of more than 50 GB, of which the hub is asked again: here from a kilobyte on."""
    before = _picture(outside)
    site = outside.parent / "site"
    site.mkdir()
    text = "import huggingface_hub.constants as c; c.MAX_HTTP_DOWNLOAD_SIZE = 1000\n"
    (site / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(site))
    hub.etag, hub.told_commit = etag.format(outside), commit.format(outside)
    await host.provide()
    assert "HEAD" in [method for _, method, _ in hub.asked], "it was fetched as a large file"
    found = {str(path.relative_to(host.snapshot())) for path in host.snapshot().rglob("*") if path.is_file()}
    assert found == WANTED
    assert (host.snapshot() / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert _picture(outside) == before
    assert {path.name for path in host.folder.path.iterdir()} == {".gpuward", "models--org--model"}


@pytest.mark.parametrize("name", ["../../../outside/planted", "/outside", "a/../../x", "./x", "a//b", ""])
async def test_a_hubs_files_and_names_of_revisions_stay_inside(
    host: Host, hub: DownloadHub, outside: Path, name: str
) -> None:
    before = _picture(outside)
    hub.repos[REPO] = {**FILES, name: b"{}"}
    with pytest.raises(FetchError):
        await host.provide()
    hub.repos[REPO] = FILES
    with suppress(FetchError):
        await host.provide(ModelFetch(repo=REPO, revision=COMMIT, name=name))
    assert _picture(outside) == before
    assert not list(host.folder.path.glob("models--org--model/refs/**/planted"))


@pytest.fixture
def removed(host: Host) -> Iterator[None]:
    """Removes the cache in the end: Python's own way calls itself for each folder in a folder, and so does pytest's."""
    yield
    subprocess.run(["rm", "-rf", str(host.folder.path)], check=True)


@pytest.mark.usefixtures("removed")
async def test_folders_nested_without_end_cost_that_model_alone(host: Host, hub: DownloadHub) -> None:
    """A hub names them, or the account that owns a model's folder makes them: no walk may fail for all models."""
    small = ModelFetch(repo="org/other")
    await host.provide(small)
    hub.repos[REPO] = {**FILES, "a/" * 1200 + "config.json": b"{}"}
    with pytest.raises(FetchError):
        await host.provide()
    assert not list(host.folder.path.glob("models--org--model/snapshots/*/a"))
    hub.repos[REPO] = FILES
    await host.provide()
    with OpenFolder.at(host.snapshot()) as folder:
        for _ in range(40):
            folder = folder.folder("a/" * 30 + "a", make=0o755)  # noqa: PLW2901 - the next one is opened from it
    with suppress(FetchError):
        await host.provide()
    removed = await host.fetches.room.prune((), 0)
    assert small.repo in {one.repo for one in removed}
    await host.provide(small)


@pytest.mark.parametrize("revision", ["main", "../../../outside", "/outside", "a" * 39])
def test_an_adapters_folder_is_that_of_a_commit(host: Host, revision: str) -> None:
    order = start_order("vllm", "serve", "org/model", "--lora-modules", "a=org/lora")
    lora = ModelFetch(repo="org/lora", revision=revision, by_folder=True)
    placed = with_snapshots(replace(order, fetches=(lora,)), host.folder.path)
    assert placed.argv[4:] == ("a=org/lora",)


def test_the_users_own_links_to_the_cache_are_followed(tmp_path: Path) -> None:
    """`--cache-dir` is the administrator's: a cache that was moved to a larger disk goes on."""
    from agent.model_cache.cache_folder import CacheFolder  # noqa: PLC0415

    (tmp_path / "disk").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    folder = CacheFolder(tmp_path / "cache")
    folder.prepare()
    folder.note_use(REPO, 1.0)
    folder.open_model(REPO).close()
    assert os.path.isdir(tmp_path / "disk" / "models--org--model")  # noqa: PTH112 - plain
