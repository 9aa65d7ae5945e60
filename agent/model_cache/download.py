"""Fetches a repository's files into the hub library's cache layout. Blocks; runs in a child process.

Not by the library's own download, which restarts after each interruption and names files as the hub answers. Here
partial files stay for the next attempt, and all names are resolved beneath the model's open folder.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.file_download import http_get, xet_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # not listed, documented

from agent.model_cache.beneath import OpenFolder, is_beneath
from schemas.exit_causes import Cause
from schemas.hub import is_commit

_AT_ONCE: Final = 4
_READ_BYTES: Final = 2**20
_INFO_S: Final = 20.0
_MOST_FILES: Final = 10_000
PART: Final = ".part"  # of an incomplete blob
_OPEN_TO_ALL: Final = 0o755  # engines of other accounts read it
constants.DOWNLOAD_CHUNK_SIZE = 2**18  # the library's 10 MiB are lost at each interruption, and hide slow progress
# Weights that servers do not load where a model has safetensors (`download_weights_from_hf` in vLLM's weight_utils.py
# takes the first format that it finds, and ignores `original/`).
_OTHER_WEIGHTS: Final = (
    "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.tflite", "*.onnx", "*.onnx_data", "*.gguf",
)  # fmt: skip
_NEVER: Final = (
    "original/*", "onnx/*", "openvino/*", "coreml/*", ".git*", "*.md", "*.png", "*.jpg", "*.jpeg", "*.gif", "*.mp4",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository."""

    name: str  # path within the repository
    size: int  # bytes
    etag: str  # its name in the cache: the SHA-256 of large files, else Git's own hash
    is_large: bool  # `etag` is the SHA-256 of its content


def chosen_files(files: Iterable[HubFile]) -> list[HubFile]:
    """The files to fetch: of weights in several formats only safetensors."""
    wanted = [file for file in files if not _matches(file.name, _NEVER)]
    if any(file.name.endswith(".safetensors") for file in wanted):
        wanted = [file for file in wanted if not _matches(file.name, _OTHER_WEIGHTS)]
    return wanted


def hasher_of(file: HubFile) -> "hashlib._Hash":
    """The hash of the content that is the file's etag."""
    if file.is_large:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)  # Git's, of the object


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class DownloadError(Exception):
    """The model cannot be fetched. `final`: the hub refuses it. `code`: a reason code, or empty."""

    def __init__(self, message: str, *, final: bool = True, code: str = "") -> None:
        super().__init__(message)
        self.final = final
        self.code = code


@dataclass(frozen=True, slots=True)
class Repository:
    """The hub's description of a model."""

    repo: str  # org/name
    revision: str  # requested
    commit: str  # of the revision
    is_public: bool  # readable without a token
    files: tuple[HubFile, ...]  # to fetch


class Download:
    """One model at one revision.

    Args:
        model: its folder in the cache.
        repo: org/name.
        revision: branch, tag or commit.
        token: the deployment's; empty: none.
        name: the branch or tag that the pinned commit came from; empty: none.
    """

    def __init__(self, model: OpenFolder, repo: str, revision: str, token: str, name: str = "") -> None:
        self._model = model
        self._token = token or False  # never the login of the host's user
        self._repo, self._revision, self._named = repo, revision, name

    def query(self) -> Repository:
        """Queries the hub.

        Raises:
            DownloadError: the model does not exist, or the token may not read it.
            OSError, HfHubHTTPError: the hub cannot be reached.
        """
        if not is_beneath(self._revision):
            raise DownloadError(f"hf:{self._repo}@{self._revision}: cannot be the name of a revision")
        api = HfApi(token=self._token)
        try:
            info = api.model_info(self._repo, revision=self._revision, files_metadata=True, timeout=_INFO_S)
            is_public = not (info.gated or info.private)
            if not is_public:
                api.auth_check(self._repo)
        except HfHubHTTPError as error:
            raise self._refusal(error) from error
        if not is_commit(info.sha or ""):  # it becomes a folder's name
            text = f"the hub answered with an invalid commit: {info.sha!r}; it must be 40 or 64 hexadecimal digits"
            raise DownloadError(f"hf:{self._repo}: {text}")
        listed = info.siblings or []
        if len(listed) > _MOST_FILES:
            raise DownloadError(f"hf:{self._repo} holds more than {_MOST_FILES} files; is it a model?")
        files = []
        for entry in listed:
            sha = entry.lfs.sha256 if entry.lfs else None
            if entry.size is None or not (sha or entry.blob_id):
                raise DownloadError(f"hf:{self._repo}: the hub does not tell size and hash of {entry.rfilename}")
            file = HubFile(entry.rfilename, entry.size, sha or entry.blob_id or "", is_large=sha is not None)
            if not (is_commit(file.etag) and is_beneath(file.name)):
                raise DownloadError(f"hf:{self._repo}: the hub names a file outside the model: {file.name!r}")
            files.append(file)
        return Repository(self._repo, self._revision, str(info.sha), is_public, tuple(chosen_files(files)))

    def _refusal(self, error: HfHubHTTPError) -> Exception:
        name = f"hf:{self._repo}"
        if isinstance(error, GatedRepoError):
            return DownloadError(
                f"{name} is gated: request access on the hub, and set HF_TOKEN in the deployment's env to a token that"
                " has it",
                code=Cause.MODEL_GATED,
            )
        if isinstance(error, RepositoryNotFoundError):
            return DownloadError(
                f"{name} does not exist, or the token may not read it; check the name, or set HF_TOKEN in the"
                " deployment's env",
                code=Cause.MODEL_NOT_FOUND,
            )
        if isinstance(error, RevisionNotFoundError) and is_commit(self._revision):
            return DownloadError(
                f"the hub no longer has commit {self._revision}, which this revision of the deployment runs, and it is"
                " not in this host's cache; run gpuward restart NAME --pull to take what the hub has now",
                code=Cause.MODEL_COMMIT_GONE,
            )
        if error.response.status_code in (401, 403, 404):
            text = f"{name}@{self._revision}: the hub has no such revision, or refuses it"
            return DownloadError(text, code=Cause.MODEL_NOT_FOUND)
        return error

    def missing(self, repository: Repository) -> list[HubFile]:
        """The files that the cache lacks, each once."""
        lacking = {file.etag: file for file in repository.files if not self._has(file)}
        return list(lacking.values())

    def _has(self, file: HubFile) -> bool:
        try:
            return self._model.status(_blob(file)).st_size == file.size
        except OSError:
            return False

    def fetched_bytes(self, files: Sequence[HubFile]) -> int:
        """Present bytes of these files, including partial ones."""
        total = 0
        for file in files:
            for path in (_blob(file), _part(file)):
                try:
                    total += min(self._model.status(path).st_size, file.size)
                    break
                except OSError:
                    continue
        return total

    def run(self, repository: Repository, missing: Sequence[HubFile]) -> None:
        """Fetches missing files, and creates the snapshot for servers.

        Raises:
            DownloadError: a file has another hash than the hub's.
            OSError, HfHubHTTPError: the network, the hub or the disk fails; a later attempt continues from here.
        """
        self._model.folder("blobs", make=_OPEN_TO_ALL).close()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda file: self._fetch(repository, file), missing):
                pass
        for file in repository.files:
            self._link(repository, file)
        if repository.revision != repository.commit:
            self._name(repository.revision, repository.commit)
        elif is_beneath(self._named) and not self._is_named(self._named):
            self._name(self._named, repository.commit)  # for servers that load the model by name

    def _fetch(self, repository: Repository, file: HubFile) -> None:
        part = _part(file)
        url = hf_hub_url(self._repo, file.name, revision=repository.commit)
        with os.fdopen(self._open_part(part), "ab") as target:
            size = target.tell()
            if size > file.size:
                target.truncate(0)
                size = 0
            if size < file.size and not (_is_huge(file) and self._fetch_huge(url, file)):
                headers = build_hf_headers(token=self._token) | {"Accept-Encoding": "identity"}
                try:
                    http_get(url, target, resume_size=size, headers=headers, displayed_filename=file.name)
                except GatedRepoError as error:
                    raise self._refusal(error) from error
        self._check(file, part)
        self._model.rename(part, _blob(file))

    def _fetch_huge(self, url: str, file: HubFile) -> bool:
        """Fetches by the hub's own protocol, required for files of this size. False if this hub does not speak it."""
        metadata = get_hf_file_metadata(url, token=self._token)
        if metadata.xet_file_data is None:
            return False
        with self._model.folder("blobs") as blobs:  # its writer needs a path, here through the open folder
            place = Path(f"/proc/self/fd/{blobs.fd}") / _part(file).rpartition("/")[2]
            headers = build_hf_headers(token=self._token)
            xet_get(
                incomplete_path=place,
                xet_file_data=metadata.xet_file_data,
                headers=headers,
                expected_size=file.size,
                displayed_filename=file.name,
            )
        return True

    def _open_part(self, part: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            return self._model.open(part, flags)
        except PermissionError:  # root's file, from an earlier version; the folder belongs to this account
            self._model.unlink(part)
            return self._model.open(part, flags)

    def _check(self, file: HubFile, part: str) -> None:
        hasher = hasher_of(file)
        with os.fdopen(self._model.open(part, os.O_RDONLY), "rb") as content:
            size = os.fstat(content.fileno()).st_size
            if size < file.size:
                raise OSError(f"{file.name}: the hub sent {size} of {file.size} bytes")
            while piece := content.read(_READ_BYTES):
                hasher.update(piece)
        if size != file.size or hasher.hexdigest() != file.etag:
            self._model.unlink(part)
            text = f"hf:{self._repo}: {file.name} is damaged: its hash is not the hub's; it is fetched again"
            raise DownloadError(text, final=False)

    def _link(self, repository: Repository, file: HubFile) -> None:
        path = f"snapshots/{repository.commit}/{file.name}"
        self._model.folder(path.rpartition("/")[0], make=_OPEN_TO_ALL).close()
        self._model.link(path, "../" * path.count("/") + _blob(file))

    def _is_named(self, revision: str) -> bool:
        try:
            self._model.status(f"refs/{revision}")
        except FileNotFoundError:
            return False
        return True

    def _name(self, revision: str, commit: str) -> None:
        path = f"refs/{revision}"
        self._model.folder(path.rpartition("/")[0], make=_OPEN_TO_ALL).close()
        self._model.replace_text(path, commit)


def _blob(file: HubFile) -> str:
    return f"blobs/{file.etag}"


def _part(file: HubFile) -> str:
    return _blob(file) + PART


def _is_huge(file: HubFile) -> bool:
    """Whether the hub serves it only by its own protocol."""
    return file.size > constants.MAX_HTTP_DOWNLOAD_SIZE
