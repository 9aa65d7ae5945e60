"""An agent of root fetches as another account, into caches that root has filled before, too."""

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from agent.model_cache.fetch_account import FETCH_UID, can_fetch_as_another
from agent.model_cache.fetch_process import FetchError
from schemas.wire import ModelFetch
from support.processes.small_disk import small_disk
from support.standins.cache_host import FILES, LATER, REPO, Host, until
from support.standins.download_hub import COMMIT, DownloadHub

OTHER_UID = 64_950

as_root = pytest.mark.skipif(not can_fetch_as_another(), reason="only root fetches as another account")


def _rights() -> Iterator[dict[str, str]]:
    """What /proc tells of the rights of each process that fetches now."""
    for child in psutil.Process().children():
        with suppress(psutil.Error, OSError):
            if any("fetch_child" in part for part in child.cmdline()):
                lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
                yield {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}


def _owners(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


def _to_root(folder: Path) -> None:
    """As an earlier version has left it."""
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, 0, 0)


async def _rights_while_it_fetches(host: Host, hub: DownloadHub) -> dict[str, str]:
    hub.pause_s, before = 0.01, hub.sent
    fetching = asyncio.create_task(host.provide())
    await until(lambda: hub.sent > before)
    (rights,) = await asyncio.to_thread(lambda: list(_rights()))
    hub.pause_s = 0.0
    await fetching
    return rights


@as_root
async def test_what_asks_the_hub_has_no_rights_of_root(host: Host, hub: DownloadHub) -> None:
    rights = await _rights_while_it_fetches(host, hub)
    assert rights["Uid"].split() == rights["Gid"].split() == [str(FETCH_UID)] * 4
    assert (rights["Groups"], rights["NoNewPrivs"]) == ("", "1")
    assert {rights[name].strip("0") for name in ("CapPrm", "CapEff", "CapAmb")} == {""}
    owners = _owners(host.folder.path)
    assert {owner for name, owner in owners.items() if name.startswith("models--")} == {FETCH_UID}
    assert {owner for name, owner in owners.items() if not name.startswith("models--")} == {0}, (
        "it notes nothing itself"
    )
    for path in (host.snapshot(), *host.snapshot().rglob("*")):
        assert path.stat().st_mode & 0o444 == 0o444, "engines of other accounts read it"


@as_root
async def test_a_cache_that_root_has_filled_is_handed_over_and_goes_on(
    host: Host, hub: DownloadHub, tmp_path: Path
) -> None:
    await host.provide()
    model = host.snapshot().parents[1]
    etag = next(path.name for path in (model / "blobs").iterdir() if path.stat().st_size > 1_000_000)
    (model / "blobs" / etag).unlink()
    (model / "blobs" / f"{etag}.part").write_bytes(b"of an interrupted fetch")
    _to_root(model)
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "file").write_text("kept")
    (model / "link").symlink_to(outside)
    (model / "snapshots" / "link").symlink_to(outside / "sub")
    os.link(outside / "file", model / "blobs" / "second-name")

    hub.commits[REPO] = LATER
    rights = await _rights_while_it_fetches(host, hub)
    assert rights["Uid"].split()[0] == str(FETCH_UID)
    for commit in (host.snapshot(), host.snapshot(LATER)):
        assert (commit / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert (model / "refs" / "main").read_text() == LATER
    assert {path.lstat().st_uid for path in (model, *model.rglob("*")) if path.is_dir() and not path.is_symlink()} == {
        FETCH_UID
    }
    assert set(_owners(outside).values()) == {0}, "nothing behind a link, and no file with another name"
    assert await host.fetches.room.prune((), 0), "the agent still removes it"


@as_root
async def test_another_file_system_is_not_handed_over(host: Host, hub: DownloadHub) -> None:
    await host.provide()
    model = host.snapshot().parents[1]
    _to_root(model)
    with small_disk(model / "other", mib=1) as disk:
        (disk.folder / "folder").mkdir()
        hub.commits[REPO] = LATER
        await host.provide()
        assert set(_owners(disk.folder).values()) == {0}


@as_root
async def test_what_root_adds_to_a_model_later_is_handed_over_too(host: Host, hub: DownloadHub) -> None:
    """Such as by the hub's own program, or by an agent of an earlier version that was started once more."""
    await host.provide()
    later = host.snapshot(LATER) / "sub"
    later.mkdir(parents=True)
    hub.commits[REPO] = LATER
    await host.provide()
    assert (host.snapshot(LATER) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert later.stat().st_uid == FETCH_UID


@as_root
async def test_a_models_own_account_fetches_into_its_folder(host: Host, hub: DownloadHub) -> None:
    """Such as in the cache of a user who fetched it first; root has added a revision since."""
    await host.provide()
    model = host.snapshot().parents[1]
    _to_root(model)
    for path in (model, *(model / name for name in ("blobs", "refs"))):
        os.chown(path, OTHER_UID, OTHER_UID)
    hub.commits[REPO] = LATER
    hub.repos[REPO] = {**FILES, "new.safetensors": os.urandom(500_000)}
    rights = await _rights_while_it_fetches(host, hub)
    assert rights["Uid"].split()[0] == str(OTHER_UID)
    assert (host.snapshot(LATER) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert {host.snapshot().stat().st_uid, host.snapshot(LATER).stat().st_uid} == {OTHER_UID}


@as_root
async def test_a_cache_on_a_file_system_without_owners_goes_on(
    host: Host, monkeypatch: pytest.MonkeyPatch, hub: DownloadHub
) -> None:
    """Such as one of Windows or of an object store. What an earlier version fetched as root is used."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    await host.provide()
    _to_root(host.snapshot().parents[1])
    monkeypatch.setattr("os.fchown", refuse)
    assert not await host.provide(), "the hub is not asked"
    hub.commits[REPO] = LATER
    with pytest.raises(FetchError, match=f"uid={FETCH_UID}, or set --cache-dir"):
        await host.provide(ModelFetch(repo=REPO, revision=LATER))


_NOTE_USE = """
import sys, time
from pathlib import Path
from agent.model_cache.cache_folder import CacheFolder
from agent.model_cache.fetch_account import can_fetch_as_another
CacheFolder(Path(sys.argv[1])).note_use(sys.argv[2], time.time(), sys.argv[3])
print(can_fetch_as_another())
"""


@as_root
@pytest.mark.parametrize(("lacking", "as_another"), [("fowner", True), ("dac_override", False)])
async def test_an_agent_in_a_container_has_what_it_needs(host: Host, lacking: str, *, as_another: bool) -> None:
    """It has the capabilities that engines with accounts of their own need, which docs/access.md names."""
    await host.provide()
    os.utime(host.snapshot(), (1.0, 1.0))
    if not as_another:
        _to_root(host.snapshot().parents[1])  # so it has fetched
    argv = ("setpriv", f"--bounding-set=-{lacking}", f"--inh-caps=-{lacking}", sys.executable, "-c", _NOTE_USE)
    path = str(host.folder.path)
    ran = await asyncio.to_thread(subprocess.run, (*argv, path, REPO, COMMIT), capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.strip()) == (0, str(as_another)), ran.stderr
    assert host.snapshot().stat().st_mtime > 1.0


@pytest.mark.parametrize("mapped", ["0 1000 1\n", "0 1000 1\n1 100000 60000\n"])
def test_an_account_that_is_not_there_is_not_taken(tmp_path: Path, mapped: str) -> None:
    """In a container of an ordinary user the agent is root in name only, and goes on as itself."""
    (tmp_path / "uid_map").write_text(mapped)
    assert not can_fetch_as_another(tmp_path / "uid_map")
