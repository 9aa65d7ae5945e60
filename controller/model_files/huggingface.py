"""A Hugging Face repository's files, read by range requests. Weights are not downloaded.

The library is imported on use: a controller without hf: models works without it.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

from controller.model_files.files import MAX_FILES, GatedModelError, MetadataError, where

_REQUEST_TIMEOUT_S: Final = 20.0
_RETRIES: Final = 2  # the complete analysis is retried too
_AT_ONCE: Final = 4  # a model of 160 files takes 160 requests
_PARTIAL, _COMPLETE = 206, 200
# Secrets in a URL: credentials, and the signature for a store behind the hub. Error messages are shown and stored.
_SECRETS: Final = re.compile(r"(?<=://)[^/\s@]+@|\?[^\s'\")]+")
_MAX_MESSAGE: Final = 1000

T = TypeVar("T")


class HubFiles:
    """The files at the top level of a repository at one commit.

    Args:
        repo: org/name.
        revision: branch, tag or commit; resolved to a commit now.
        endpoint: URL of a mirror; None: the library's default.

    Raises:
        MetadataError: retryable if the hub is unreachable or access may still be granted, terminal if it has no such
            public model.
    """

    def __init__(self, repo: str, revision: str, endpoint: str | None = None) -> None:
        self.name = f"hf:{repo}@{revision}"
        self._repo, self._endpoint = repo, endpoint
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        with _as_metadata_error(self.name, endpoint):
            from huggingface_hub import HfApi  # noqa: PLC0415 - see the module's docstring

            api = HfApi(endpoint=endpoint)
            info = api.model_info(repo, revision=revision, files_metadata=True, timeout=_REQUEST_TIMEOUT_S)
        self.revision: str | None = info.sha
        entries = info.siblings or []
        if len(entries) > MAX_FILES:
            raise MetadataError(
                f"{self.name}: holds more than {MAX_FILES} files; is it a model repository?", retryable=False
            )
        files = [s for s in entries if "/" not in s.rfilename]
        if any(s.size is None for s in files):
            raise MetadataError(f"{self.name}: the hub does not report the files' sizes", retryable=False)
        self.sizes: Mapping[str, int] = {s.rfilename: s.size or 0 for s in files}

    def read(self, name: str, start: int, length: int) -> bytes:
        length = min(length, self.sizes[name] - start)
        if length <= 0:
            return b""
        with _as_metadata_error(where(self, name), self._endpoint):
            from huggingface_hub import hf_hub_url  # noqa: PLC0415 - see the module's docstring
            from huggingface_hub.utils import (  # type: ignore[attr-defined]  # noqa: PLC0415 - not listed, documented
                build_hf_headers,
                hf_raise_for_status,
                http_stream_backoff,
            )

            url = hf_hub_url(self._repo, name, revision=self.revision, endpoint=self._endpoint)
            headers = build_hf_headers() | {
                "Range": f"bytes={start}-{start + length - 1}",
                "Accept-Encoding": "identity",
            }
            with http_stream_backoff(
                "GET", url, headers=headers, max_retries=_RETRIES, timeout=_REQUEST_TIMEOUT_S, follow_redirects=True
            ) as response:
                hf_raise_for_status(response)
                if response.status_code != _PARTIAL and (start or response.status_code != _COMPLETE):
                    raise MetadataError(
                        f"{where(self, name)}: the hub does not support range requests", retryable=False
                    )
                # A server may send the complete file, which is read only up to the requested length.
                return _at_most(response.iter_bytes(), length)

    def each(self, function: Callable[[str], T], names: Iterable[str]) -> Iterator[T]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:  # since most of the time is latency
            yield from pool.map(function, names)


def head_of(repo: str, revision: str) -> str | None:
    """The present commit of a branch or tag. Raises `MetadataError` as `HubFiles`."""
    with _as_metadata_error(f"hf:{repo}@{revision}", None):
        from huggingface_hub import HfApi  # noqa: PLC0415 - see the module's docstring

        info = HfApi().model_info(repo, revision=revision, timeout=_REQUEST_TIMEOUT_S)
        return info.sha


def _at_most(chunks: Iterable[bytes], length: int) -> bytes:
    parts, left = [], length
    for chunk in chunks:
        parts.append(chunk[:left])
        left -= len(parts[-1])
        if not left:
            return b"".join(parts)
    raise MetadataError(f"the hub sent {length - left} bytes instead of {length}", retryable=True)


@contextmanager
def _as_metadata_error(name: str, endpoint: str | None) -> Iterator[None]:
    """Converts the library's errors into a `MetadataError` with a fix."""
    try:
        from huggingface_hub.errors import (  # noqa: PLC0415 - see the module's docstring
            EntryNotFoundError,
            GatedRepoError,
            HFValidationError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError as error:
        raise MetadataError(
            "hf: models need the package huggingface_hub in the controller; install it or set resources.gpu_memory",
            retryable=False,
        ) from error
    try:
        yield
    except MetadataError:
        raise
    except GatedRepoError as error:
        raise GatedModelError(
            f"{name} is gated: request access on the hub and set HF_TOKEN in the controller's environment, "
            "or set resources.gpu_memory",
            retryable=True,  # granting it changes no spec
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, EntryNotFoundError, HFValidationError) as error:
        raise MetadataError(
            f"{name} does not exist or is not public; check the name, set HF_TOKEN in the controller's environment, "
            "or set resources.gpu_memory",
            retryable=False,
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # the library's network errors have no common base of their own
        text = _SECRETS.sub("", str(error))[:_MAX_MESSAGE]
        why = f"{type(error).__name__}: {text}"
        if _is_unreachable(error):
            hub = _SECRETS.sub("", endpoint or os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
            why = (
                f"this controller does not reach the hub at {hub} ({why}); set HF_ENDPOINT in its environment to "
                "a mirror, or use path:, or set resources.gpu_memory"
            )
        raise MetadataError(f"{name} cannot be read: {why}", retryable=True) from error


def _is_unreachable(error: Exception) -> bool:
    # By the name of a base class, because the library has changed the package of its connections.
    return any(base.__name__ == "TransportError" for base in type(error).__mro__)
