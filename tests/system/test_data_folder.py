"""One controller for each data folder, with any database."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from controller.data_folder import DataFolderError, locked_folder
from support.processes.cluster import Cluster

ENDS_S = 60.0


def test_a_folder_is_locked_until_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    with locked_folder(folder):
        assert folder.stat().st_mode & 0o777 == 0o700
        with (
            pytest.raises(DataFolderError, match=f"in use by process {os.getpid()}.*--data-dir"),
            locked_folder(folder),
        ):
            pass
        with locked_folder(tmp_path / "other"):
            pass
    with locked_folder(folder):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFolderError, match=r"file/folder.*--data-dir"), locked_folder(tmp_path / "file" / "folder"):
        pass


async def test_a_second_controller_on_one_folder_is_refused_with_a_database_of_ones_own(
    cluster: Cluster, database: str
) -> None:
    await cluster.start_controller(GPUWARD_DATABASE_URL=database)
    file = cluster.data_dir / "client.env"
    before = file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_ino
    argv = ("controller", "--data-dir", str(cluster.data_dir), "--port", "0")
    # Of the same database, of one that does not answer, and with the embedded one: the folder decides.
    for number, url in enumerate((database, "postgresql://u:p@127.0.0.1:1/none", None)):
        name, env = f"second-{number}", {} if url is None else {"GPUWARD_DATABASE_URL": url}
        cluster.start(name, *argv, **env)
        assert await asyncio.to_thread(cluster.processes[name].wait, ENDS_S) == 1, cluster.log(name)
        assert f"in use by process {cluster.processes['controller'].pid}" in cluster.log(name)
    assert (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_ino) == before
    assert (await cluster.get("/leader"))["leading"] is True
    cluster.processes["controller"].send_signal(signal.SIGKILL)
    await asyncio.to_thread(cluster.processes["controller"].wait, ENDS_S)
    await cluster.start_controller(GPUWARD_DATABASE_URL=database)  # a crash leaves no lock behind
