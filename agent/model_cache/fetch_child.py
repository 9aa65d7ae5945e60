"""The child process that fetches one model. Its first line of input is the task; it answers by lines of JSON.

It sends its plan, waits for a second line, and sends the present bytes once a second. It ends with its parent. The
model's folder and the lock file are open descriptors: it needs no path to the cache, and writes nothing else. It
becomes the task's account, if any, before it queries the hub.
"""

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from agent.model_cache.beneath import OpenFolder
from agent.model_cache.fetch_account import give_up_root
from agent.model_cache.fetch_errors import code_of
from agent.model_cache.file_lock import LockedError, lock_opened
from agent.model_cache.hub_layout import blob_sizes
from agent.processes.account import Account

_REPORT_S: Final = 1.0
_MOST_TEXT: Final = 600
# Credentials in a URL, and its signature for a store behind the hub. Messages are shown and stored.
_SECRETS: Final = re.compile(r"(?<=://)[^/\s@]+@|\?[^\s'\")]+")


def main() -> int:
    os.umask(0o022)  # engines of other accounts read what it writes
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    task = json.loads(sys.stdin.readline())
    allowed = threading.Event()
    try:
        if task["account"] is not None:
            give_up_root(Account(*task["account"]))
        threading.Thread(target=_follow_parent, args=(allowed,), daemon=True).start()
        model = OpenFolder(task["folder_fd"])
        with _alone(model, task["lock_fd"]):
            _send(done=_fetch(model, task, allowed))
    except ImportError as error:
        _send(error=f"hf: models need the package huggingface_hub in the agent: {error}", final=True)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the library's network errors have no common base of their own
        from agent.model_cache.download import DownloadError  # noqa: PLC0415 - see below

        text = str(error) if isinstance(error, DownloadError) else f"{type(error).__name__}: {error}"
        refused = error if isinstance(error, DownloadError) else None
        code = code_of(error) if refused is None else refused.code
        _send(error=_SECRETS.sub("", text)[:_MOST_TEXT], final=refused is not None and refused.final, code=code)
    return 0


def _fetch(model: OpenFolder, task: dict[str, Any], allowed: threading.Event) -> dict[str, Any]:
    from agent.model_cache.download import Download  # noqa: PLC0415 - the hub's library is slow to import

    download = Download(model, task["repo"], task["revision"], task["token"], task["name"])
    repository = download.query()
    missing = download.missing(repository)
    total = sum(file.size for file in missing)
    _send(
        plan={
            "commit": repository.commit,
            "public": repository.is_public,
            "missing": total,
            "there": download.fetched_bytes(missing),
        }
    )
    allowed.wait()
    over = threading.Event()

    def report() -> None:
        while not over.wait(_REPORT_S):
            _send(bytes=download.fetched_bytes(missing))

    threading.Thread(target=report, daemon=True).start()
    try:
        download.run(repository, missing)
    finally:
        over.set()
    return {"commit": repository.commit, "public": repository.is_public}


@contextmanager
def _alone(model: OpenFolder, lock_fd: int) -> Iterator[None]:
    """Holds the lock of the repository. While another process has it, reports the present bytes of the model."""
    release = None
    while release is None:
        try:
            release = lock_opened(os.dup(lock_fd), "the model", _REPORT_S)
        except LockedError:
            _send(waits=sum(blob_sizes(model).values()))
    try:
        yield
    finally:
        release()


def _follow_parent(allowed: threading.Event) -> None:
    if sys.stdin.readline():
        allowed.set()
        sys.stdin.readline()
    os._exit(1)  # the parent is gone or cancels: fetched data stays


_sending = threading.Lock()


def _send(**message: Any) -> None:
    with _sending:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
