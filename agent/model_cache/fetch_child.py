"""The child process that fetches one model. Its first line of input is the task; it answers by lines of JSON.

It says what it will fetch, waits for a second line, and says once a second how much is there. It ends with its parent.
"""

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from agent.model_cache.cache_folder import CacheFolder, folder_name, lock_path
from agent.model_cache.file_lock import LockedError, take_lock

_TELL_S: Final = 1.0
_MOST_TEXT: Final = 600
# In a URL: credentials, and the signature for a store behind the hub. What is told is shown and stored.
_SECRETS: Final = re.compile(r"(?<=://)[^/\s@]+@|\?[^\s'\")]+")


def main() -> int:
    """Runs one task; returns the exit code."""
    os.umask(0o022)  # engines of other accounts read what it writes
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    task = json.loads(sys.stdin.readline())
    allowed = threading.Event()
    threading.Thread(target=_follow_parent, args=(allowed,), daemon=True).start()
    try:
        with _alone(Path(task["cache_dir"]), task["repo"]):
            _tell(done=_fetch(task, allowed))
    except ImportError as error:
        _tell(error=f"hf: models need the package huggingface_hub in the agent: {error}", final=True)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the library's network errors have no common base of their own
        from agent.model_cache.download import DownloadError  # noqa: PLC0415 - see below

        text = str(error) if isinstance(error, DownloadError) else f"{type(error).__name__}: {error}"
        refused = error if isinstance(error, DownloadError) else None
        told = {"final": refused is not None and refused.final, "gone": refused is not None and refused.gone}
        _tell(error=_SECRETS.sub("", text)[:_MOST_TEXT], **told)
    return 0


def _fetch(task: dict[str, Any], allowed: threading.Event) -> dict[str, Any]:
    from agent.model_cache.download import Download  # noqa: PLC0415 - the hub's library is slow to import

    download = Download(Path(task["cache_dir"]), task["repo"], task["revision"], task["token"], task["name"])
    found = download.look()
    missing = download.missing(found)
    total = sum(file.size for file in missing)
    _tell(
        plan={
            "commit": found.commit,
            "public": found.is_public,
            "missing": total,
            "there": download.fetched_bytes(missing),
        }
    )
    allowed.wait()
    over = threading.Event()

    def tell() -> None:
        while not over.wait(_TELL_S):
            _tell(bytes=download.fetched_bytes(missing))

    threading.Thread(target=tell, daemon=True).start()
    try:
        CacheFolder(Path(task["cache_dir"])).note_begun(found.repo, found.commit)
        download.run(found, missing)
    finally:
        over.set()
    return {"commit": found.commit, "public": found.is_public}


@contextmanager
def _alone(cache_dir: Path, repo: str) -> Iterator[None]:
    """Holds the lock of the repository. While another process has it, says how much of the model is there."""
    path = lock_path(cache_dir, repo)
    path.parent.mkdir(parents=True, exist_ok=True)
    release = None
    while release is None:
        try:
            release = take_lock(path, _TELL_S)
        except LockedError:
            _tell(waits=_written_bytes(cache_dir / folder_name(repo) / "blobs"))
    try:
        yield
    finally:
        release()


def _written_bytes(folder: Path) -> int:
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
    except OSError:
        return 0  # it is not there yet, or changes just now


def _follow_parent(allowed: threading.Event) -> None:
    if sys.stdin.readline():
        allowed.set()
        sys.stdin.readline()
    os._exit(1)  # the parent is gone, or wants no more: what is fetched stays


_telling = threading.Lock()


def _tell(**words: Any) -> None:
    with _telling:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
