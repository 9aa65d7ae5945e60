"""The folders in memory of the tests' own databases: several runs at once neither take nor leave one another's."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.database.postgres import quick_folder

RUNS, FOLDERS = 6, 30


def test_runs_beside_one_another_keep_their_folders_until_they_remove_them() -> None:
    def run(_: int) -> list[Path]:
        seen = []
        for _ in range(FOLDERS):
            with quick_folder() as folder:
                (folder / "file").write_text("kept")
                assert (folder / "file").read_text() == "kept"
                seen.append(folder)
        return seen

    with ThreadPoolExecutor(RUNS) as pool:
        folders = [folder for seen in pool.map(run, range(RUNS)) for folder in seen]
    assert len(set(folders)) == RUNS * FOLDERS
    assert not [folder for folder in folders if folder.exists()]
