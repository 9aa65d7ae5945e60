"""The functions that the killable child runs. Each takes a JSON value and returns a JSON value.

Slow imports are not at the top, because a child starts for every model that is read.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from controller.domain.model_facts import COMMITS, ModelFacts, facts_to_json
from controller.model_files.concealed import concealed, place_of
from controller.model_files.config import read_config, with_config
from controller.model_files.files import LocalFolder, MetadataError, ModelFiles
from controller.model_files.weights import read_weights
from schemas.hub import hub_reference, is_commit

MAX_ADAPTERS: Final = 64
_MODULES_FILE: Final = "modules.json"
MAX_SIMULATED_S: Final = 3600.0

Reading: TypeAlias = Callable[[Mapping[str, Any], Callable[[], Any]], Any]  # how a source is read


def model_facts(payload: dict[str, Any]) -> dict[str, Any]:
    """Reads a model's metadata from its files. Weights are neither read nor downloaded.

    Args:
        payload: the source: `{"path": folder}`, `{"gguf": file}` or `{"repo": name, "revision": revision}`. A repo
            may have `"endpoint": URL`, and `"file": name` if it holds several GGUF models. Each may have `"adapters"`,
            a list of sources whose bytes are added up; `"draft"`, the source of its draft model; and, for a GGUF
            model, `"to_host"`, the rules of `by_layer`.

    Returns:
        `ModelFacts` as JSON, and `commits` of the models on a hub, by `org/name@revision`.

    Raises:
        UnreadError: a path of this host holds no model.
        MetadataError: the metadata cannot be read.
    """
    return _facts(payload, concealed)


def read_facts(payload: dict[str, Any]) -> dict[str, Any]:
    """As `model_facts`, but errors have the reason for each path: for callers that may know this host's files."""
    return _facts(payload, lambda _source, read: read())


def _facts(payload: dict[str, Any], reading: Reading) -> dict[str, Any]:
    adapters = payload.get("adapters", [])
    if len(adapters) > MAX_ADAPTERS:
        raise MetadataError(f"{len(adapters)} adapters, more than {MAX_ADAPTERS}; name fewer", retryable=False)
    commits: dict[str, str] = {}
    try:
        facts = reading(payload, lambda: facts_of(*_files(payload, commits), payload.get("to_host")))
        draft = payload.get("draft")
        facts = replace(
            facts,
            adapter_bytes=sum(reading(source, partial(_adapter_bytes, source, commits)) for source in adapters),
            draft=None if draft is None else reading(draft, lambda: facts_of(*_files(draft, commits))),
        )
        return {**facts_to_json(facts), **({COMMITS: commits} if commits else {})}
    except MemoryError as error:
        raise MetadataError(
            "the model's headers exceed the reader's memory limit; set resources.gpu_memory",
            retryable=False,
        ) from error


def hub_heads(payload: dict[str, Any]) -> list[dict[str, Any]]:
    """The commits of branches and tags now.

    Args:
        payload: `{"models": [{"repo": name, "revision": revision}, ...]}`.

    Returns:
        For each in order `{"head": commit}`, or `{"problem": text}`.
    """
    from controller.model_files.huggingface import head_of  # noqa: PLC0415 - imports TLS

    def head(model: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"head": head_of(model["repo"], model["revision"])}
        except MetadataError as error:
            return {"problem": str(error)}

    return [head(model) for model in payload["models"][: MAX_ADAPTERS + 2]]


def facts_of(
    files: ModelFiles, gguf_file: str | None = None, to_host: Sequence[Mapping[str, Any]] | None = None
) -> ModelFacts:
    """The metadata of a model.

    Args:
        files: of the model's folder, which may hold other files.
        gguf_file: to read; None: safetensors and `.bin` come before the only GGUF model.
        to_host: for a GGUF model, the rules of `by_layer`; None: layers are not measured.
    """
    gguf_file = gguf_file or _only_gguf(files)
    if gguf_file is not None:
        from controller.model_files.gguf_model import read_gguf  # noqa: PLC0415 - imports numpy

        return read_gguf(files, gguf_file, to_host)
    weights = read_weights(files)
    facts = ModelFacts(
        weights.format, weights.size_bytes, dict(weights.dtypes), weights.parameters, revision=files.revision
    )
    # vLLM treats a generating architecture with this file of sentence-transformers as an embedding model.
    return replace(with_config(facts, read_config(files)), pooling=_MODULES_FILE in files.sizes)


def _adapter_bytes(source: dict[str, Any], commits: dict[str, str]) -> int:
    files, gguf_file = _files(source, commits)
    gguf_file = gguf_file or _only_gguf(files)
    if gguf_file is not None:
        from controller.model_files.gguf_model import gguf_bytes  # noqa: PLC0415 - as above

        return gguf_bytes(files, gguf_file)
    return read_weights(files).size_bytes


def _only_gguf(files: ModelFiles) -> str | None:
    if any(name.endswith((".safetensors", ".bin")) for name in files.sizes):
        return None
    from controller.model_files.gguf_model import only_model  # noqa: PLC0415 - as above

    return only_model(files)


def _files(source: dict[str, Any], commits: dict[str, str]) -> tuple[ModelFiles, str | None]:
    """The files of a source, and its GGUF file if it names one. Adds the commit of a branch to `commits`."""
    if "repo" in source:
        from controller.model_files.huggingface import HubFiles  # noqa: PLC0415 - imports TLS

        files = HubFiles(source["repo"], source["revision"], source.get("endpoint"))
        if is_commit(files.revision or "") and not is_commit(source["revision"]):
            commits[hub_reference(source["repo"], source["revision"])] = files.revision or ""
        return files, source.get("file")
    path = place_of(source["gguf"] if "gguf" in source else source["path"])
    if "gguf" in source or path.suffix == ".gguf":
        return LocalFolder(path.parent), path.name
    return LocalFolder(path), None


def simulated_need(payload: dict[str, Any]) -> dict[str, Any]:
    """Takes `seconds`, then returns the given `memory_mib` (None: unknown)."""
    time.sleep(min(float(payload["seconds"]), MAX_SIMULATED_S))
    return {"memory_mib": payload["memory_mib"]}
