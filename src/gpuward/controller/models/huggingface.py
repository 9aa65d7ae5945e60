"""Reads a Hugging Face model's safetensors headers by range requests; no weights are downloaded.

The library is imported when it is needed: a controller whose users name only folders does not have to have it.
"""

import os
import tempfile
from typing import TYPE_CHECKING, Final

from gpuward.controller.models.config import ModelConfig, parse_config
from gpuward.controller.models.errors import MetadataError
from gpuward.controller.models.jsonfile import parse_object
from gpuward.controller.models.safetensors import Tensor, TensorTotals

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_REQUEST_TIMEOUT_S: Final = 20.0


def hub_totals(repo: str, revision: str, endpoint: str | None = None) -> tuple[TensorTotals, ModelConfig]:
    """Adds up the tensors of a repository on the hub, and reads its config.

    Args:
        repo: org/name.
        revision: branch, tag or commit.
        endpoint: URL of a mirror; None: where the library goes by itself.

    Raises:
        MetadataError: retryable where the hub cannot be reached, terminal where it has no such model.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        from huggingface_hub import HfApi  # noqa: PLC0415 - see the module's docstring
        from huggingface_hub.errors import (  # noqa: PLC0415 - as above
            GatedRepoError,
            NotASafetensorsRepoError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
            SafetensorsParsingError,
        )
    except ImportError as error:
        raise MetadataError(
            "hf: models need the package huggingface_hub in the controller; install it or give resources.gpu_memory",
            retryable=False,
        ) from error
    name = f"hf:{repo}@{revision}"
    try:
        with tempfile.TemporaryDirectory(prefix="gpuward-hub-") as cache:
            return _read(HfApi(endpoint=endpoint), repo, revision, cache)
    except SafetensorsParsingError as error:
        raise MetadataError(f"{name} has broken safetensors: {error}", retryable=False) from error
    except (GatedRepoError, NotASafetensorsRepoError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        # The library asks for files by name, so that a repository it may not see looks like one without such files.
        raise MetadataError(
            f"{name} is not there, not public, or has no safetensors; check the name, or give resources.gpu_memory",
            retryable=False,
        ) from error
    except Exception as error:  # the library's network errors have no common base of their own
        raise MetadataError(f"{name} cannot be read: {type(error).__name__}: {error}", retryable=True) from error


def _read(api: "HfApi", repo: str, revision: str, cache: str) -> tuple[TensorTotals, ModelConfig]:
    metadata = api.get_safetensors_metadata(repo, revision=revision, timeout=_REQUEST_TIMEOUT_S)
    tensors = {
        name: Tensor(info.dtype, info.parameter_count, info.data_offsets[1] - info.data_offsets[0])
        for file in metadata.files_metadata.values()
        for name, info in file.tensors.items()
    }
    config = ModelConfig()
    if api.file_exists(repo, "config.json", revision=revision):
        path = api.hf_hub_download(repo, "config.json", revision=revision, cache_dir=cache)
        with open(path, "rb") as file:  # noqa: PTH123 - a path that the library made as text
            config = parse_config(parse_object(file.read(), f"config.json of {repo}"))
    return TensorTotals.of(tensors, len(metadata.files_metadata)), config
