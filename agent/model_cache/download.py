"""Fetches a repository's files into the hub library's own cache layout. Blocks; runs in a child process.

The library's own download begins anew after each interruption. Here a part stays, and the next attempt goes on from it.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # not listed, documented

from agent.model_cache.selection import HubFile, chosen_files, hasher_of
from schemas.hub_commits import is_commit

_AT_ONCE: Final = 4
_READ_BYTES: Final = 2**20
_INFO_S: Final = 20.0
_MOST_FILES: Final = 10_000
PART: Final = ".part"  # of a blob that is being fetched
constants.DOWNLOAD_CHUNK_SIZE = 2**18  # the library's 10 MiB are lost at each interruption, and hide slow progress


def is_inside(name: str) -> bool:
    """Whether a path of a repository, or the name of a revision, stays inside its folder."""
    return bool(name) and not name.startswith("/") and not {"", ".", ".."} & set(name.split("/"))


class DownloadError(Exception):
    """The model cannot be fetched; the message says what to do. `final`: the hub refuses it.

    `gone`: it knows the model, and has no such revision of it.
    """

    def __init__(self, message: str, *, final: bool = True, gone: bool = False) -> None:
        super().__init__(message)
        self.final = final
        self.gone = gone


@dataclass(frozen=True, slots=True)
class Repository:
    """What the hub says of a model.

    Attributes:
        repo: org/name.
        revision: that was asked for.
        commit: that it names now.
        is_public: readable without a token.
        files: to fetch.
    """

    repo: str
    revision: str
    commit: str
    is_public: bool
    files: tuple[HubFile, ...]


class Download:
    """One model at one revision.

    Args:
        cache_dir: the cache's folder.
        repo: org/name.
        revision: branch, tag or commit.
        token: the deployment's; empty: none.
        name: the branch or tag of which the revision is the kept commit; empty: none.
    """

    def __init__(self, cache_dir: Path, repo: str, revision: str, token: str, name: str = "") -> None:
        self._cache_dir = cache_dir
        self._token = token or False  # never one that the host's user has logged in with
        self._repo, self._revision, self._named = repo, revision, name
        self._blobs = cache_dir / repo_folder_name(repo_id=repo, repo_type="model") / "blobs"

    def look(self) -> Repository:
        """Asks the hub.

        Raises:
            DownloadError: there is no such model, or the token may not read it.
            OSError, HfHubHTTPError: the hub cannot be reached.
        """
        if not is_inside(self._revision):
            raise DownloadError(f"hf:{self._repo}@{self._revision}: cannot be the name of a revision")
        api = HfApi(token=self._token)
        try:
            info = api.model_info(self._repo, revision=self._revision, files_metadata=True, timeout=_INFO_S)
            is_public = not (info.gated or info.private)
            if not is_public:
                api.auth_check(self._repo)
        except HfHubHTTPError as error:
            raise self._refusal(error) from error
        if not is_commit(info.sha or ""):  # it becomes the name of a folder
            text = f"the hub answered with an invalid commit: {info.sha!r}; it must be 40 or 64 hexadecimal digits"
            raise DownloadError(f"hf:{self._repo}: {text}")
        siblings = info.siblings or []
        if len(siblings) > _MOST_FILES:
            raise DownloadError(f"hf:{self._repo} holds more than {_MOST_FILES} files; is it a model?")
        files = []
        for one in siblings:
            sha = one.lfs.sha256 if one.lfs else None
            if one.size is None or not (sha or one.blob_id):
                raise DownloadError(f"hf:{self._repo}: the hub does not tell size and hash of {one.rfilename}")
            file = HubFile(one.rfilename, one.size, sha or one.blob_id or "", is_large=sha is not None)
            if not (is_commit(file.etag) and is_inside(file.name)):
                raise DownloadError(f"hf:{self._repo}: the hub names a file outside the model: {file.name!r}")
            files.append(file)
        return Repository(self._repo, self._revision, str(info.sha), is_public, tuple(chosen_files(files)))

    def _refusal(self, error: HfHubHTTPError) -> Exception:
        name = f"hf:{self._repo}"
        if isinstance(error, GatedRepoError):
            return DownloadError(
                f"{name} is gated: request access on the hub, and set HF_TOKEN in the deployment's env to a token that"
                " has it"
            )
        if isinstance(error, RepositoryNotFoundError):
            return DownloadError(
                f"{name} does not exist, or the token may not read it; check the name, or set HF_TOKEN in the"
                " deployment's env"
            )
        if isinstance(error, RevisionNotFoundError) and is_commit(self._revision):
            return DownloadError(
                f"the hub no longer has commit {self._revision}, which this revision of the deployment runs, and it is"
                " not in this host's cache; run gpuward restart NAME --pull to take what the hub has now",
                gone=True,
            )
        if error.response.status_code in (401, 403, 404):
            return DownloadError(f"{name}@{self._revision}: the hub has no such revision, or refuses it")
        return error

    def missing(self, found: Repository) -> list[HubFile]:
        """The files that are not in the cache yet, each once."""
        lacking = {file.etag: file for file in found.files if not self._has(file)}
        return list(lacking.values())

    def _has(self, file: HubFile) -> bool:
        try:
            return (self._blobs / file.etag).stat().st_size == file.size
        except OSError:
            return False

    def fetched_bytes(self, files: Sequence[HubFile]) -> int:
        """How much of these files is there, parts included."""
        total = 0
        for file in files:
            for path in (self._blobs / file.etag, self._part(file)):
                try:
                    total += min(path.stat().st_size, file.size)
                    break
                except OSError:
                    continue
        return total

    def run(self, found: Repository, missing: Sequence[HubFile], begun: Callable[[], None] = lambda: None) -> None:
        """Fetches what is missing, and makes the snapshot that servers look for.

        Raises:
            DownloadError: a file is not what the hub says.
            OSError, HfHubHTTPError: the network, the hub or the disk fails; a later attempt goes on from here.
        """
        self._blobs.mkdir(parents=True, exist_ok=True)
        begun()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda file: self._fetch(found, file), missing):
                pass
        for file in found.files:
            self._link(found, file)
        if found.revision != found.commit:
            self._name(found.revision, found.commit)
        elif is_inside(self._named) and not (self._blobs.parent / "refs" / self._named).exists():
            self._name(self._named, found.commit)  # for what asks by the name alone

    def _part(self, file: HubFile) -> Path:
        return self._blobs / (file.etag + PART)

    def _fetch(self, found: Repository, file: HubFile) -> None:
        if file.size > constants.MAX_HTTP_DOWNLOAD_SIZE:  # beyond this the hub answers its library's own protocol only
            hf_hub_download(self._repo, file.name, revision=found.commit, cache_dir=self._cache_dir, token=self._token)
            return
        part = self._part(file)
        with part.open("ab") as target:
            size = target.tell()
            if size > file.size:
                target.truncate(0)
                size = 0
            if size < file.size:
                url = hf_hub_url(self._repo, file.name, revision=found.commit)
                headers = build_hf_headers(token=self._token) | {"Accept-Encoding": "identity"}
                try:
                    http_get(url, target, resume_size=size, headers=headers, displayed_filename=file.name)
                except GatedRepoError as error:
                    raise self._refusal(error) from error
        self._check(file, part)
        part.replace(self._blobs / file.etag)

    def _check(self, file: HubFile, part: Path) -> None:
        found = hasher_of(file)
        with part.open("rb") as content:
            size = os.fstat(content.fileno()).st_size
            if size < file.size:
                raise OSError(f"{file.name}: the hub sent {size} of {file.size} bytes")
            while piece := content.read(_READ_BYTES):
                found.update(piece)
        if size != file.size or found.hexdigest() != file.etag:
            part.unlink()
            text = f"hf:{self._repo}: {file.name} is damaged: its hash is not the hub's; it is fetched anew"
            raise DownloadError(text, final=False)

    def _link(self, found: Repository, file: HubFile) -> None:
        pointer = self._blobs.parent / "snapshots" / found.commit / file.name
        target = os.path.relpath(self._blobs / file.etag, pointer.parent)
        if pointer.is_symlink() and pointer.readlink() == Path(target):
            return
        pointer.parent.mkdir(parents=True, exist_ok=True)
        pointer.unlink(missing_ok=True)
        pointer.symlink_to(target)

    def _name(self, revision: str, commit: str) -> None:
        name = self._blobs.parent / "refs" / revision
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text(commit)
