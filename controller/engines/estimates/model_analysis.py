"""The analysis of a model's files, as work for a child that can be killed.

It depends on the files alone, so all deployments of a model share it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from controller.domain.model_facts import ModelFacts
from controller.domain.placement import Need
from controller.engines.arguments.flags import text
from controller.engines.base import Analysis, SpecError, model_reference
from schemas.hub import OWN_CACHE
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason
from schemas.wire import ModelFetch

_ANALYSIS: Final = "controller.model_files.analysis:model_facts"
_HASHED_AS: Final = "gpuward.controller.models.analysis:model_facts"
_PLAIN_FORMATS: Final = ("auto", "safetensors", "hf", "pt")
_FOLDER_DEADLINE_S: Final = 60.0
_HUB_DEADLINE_S: Final = 180.0
_ANALYSIS_MEMORY_BYTES: Final = 2 * 2**30  # a header of 64 MiB takes about ten times that as Python objects


def model_analysis(
    spec: DeploymentSpec,
    adapters: Sequence[str] = (),
    draft: str | None = None,
    to_host: Sequence[Mapping[str, Any]] | None = None,
) -> Analysis:
    """The analysis of the spec's model, its adapters (folders, files or names on the hub) and draft model.

    `to_host`: for a GGUF model, the rules for tensors that stay in the host's memory; None: layers are not measured.
    """
    payload = source_of(spec.model or "")
    if adapters:
        payload["adapters"] = [_adapter(adapter) for adapter in adapters]
    if draft is not None:
        payload["draft"] = source_of(draft)
    if to_host is not None:
        payload["to_host"] = list(to_host)
    on_hub = any("repo" in part for part in (payload, payload.get("draft", ()), *payload.get("adapters", ())))
    deadline_s = _HUB_DEADLINE_S if on_hub else _FOLDER_DEADLINE_S
    return Analysis(_ANALYSIS, payload, deadline_s, _ANALYSIS_MEMORY_BYTES, _HASHED_AS)


def source_of(model: str) -> dict[str, Any]:
    """The payload for the files of `path:/folder`, `gguf:/file` or `hf:org/name@revision`."""
    scheme, _, reference = model.partition(":")
    if scheme == "hf":
        repo, _, revision = reference.partition("@")
        return {"repo": repo, "revision": revision or "main"}
    return {"path" if scheme == "path" else "gguf": reference}


def _adapter(reference: str) -> dict[str, Any]:
    if not reference.startswith("/"):
        return source_of(f"hf:{reference}")
    return {"gguf" if reference.endswith(".gguf") else "path": reference}


def refuse_other_models(spec: DeploymentSpec, engine: str, *, gguf: bool) -> None:
    """Raises SpecError for a kind of model that the engine does not load."""
    wanted = "gguf:/file" if gguf else "path:/dir or hf:org/name"
    if spec.model is None or spec.model.startswith("gguf:") is not gguf:
        raise SpecError(f"model: engine {engine} needs model: {wanted}")
    if spec.model.startswith("path:") and "@" in spec.model:
        raise SpecError(f"model: {engine} reads what follows '@' as a revision; rename the folder")


def reference_problem(reference: str, *, on_hub: bool) -> str | None:
    """Why a path or `org/name@revision` is not a valid reference; None if it is. Servers would read `--x` as a flag."""
    if not reference.isprintable():
        return "contains control characters; remove them"
    if ".." in reference.replace("@", "/").split("/"):
        return "contains '..'; write the path out"
    if on_hub and any(part.startswith("-") for part in reference.replace("@", "/").split("/")):
        return "a part of it begins with '-', which a server would read as a flag"
    return None


def offline_env(spec: DeploymentSpec) -> dict[str, str]:
    """The environment that keeps a server off the hub if the model is a folder."""
    return {"HF_HUB_OFFLINE": "1"} if spec.model is not None and spec.model.startswith("path:") else {}


def model_fetches(spec: DeploymentSpec, draft: str | None = None) -> tuple[ModelFetch, ...]:
    """The hub's models that the agent fetches before the start: the model, its draft model and the adapters.

    Empty if the server keeps models in another place, or loads weights in another way.
    """
    own_way = text(spec, "load-format") not in (None, *_PLAIN_FORMATS) or text(spec, "download-dir") is not None
    if own_way or spec.env.keys() & OWN_CACHE:
        return ()
    places = [(place, False) for place in (spec.model or "", draft or "")]
    places += [(place, True) for place in spec.serving.adapters.values()]
    fetches = []
    for place, adapter in places:
        if place.startswith("hf:"):
            repo, _, revision = place.removeprefix("hf:").partition("@")
            fetches.append(ModelFetch(repo=repo, revision=revision or "main", by_folder=adapter and bool(revision)))
    return tuple(dict.fromkeys(fetches))


def repository(spec: DeploymentSpec) -> tuple[str, str | None]:
    """The model for the server's command line: a folder, or a name on the hub with its revision, if any."""
    reference = model_reference(spec) or ""
    if spec.model is None or not spec.model.startswith("hf:"):
        return reference, None
    repo, _, revision = reference.partition("@")
    return repo, revision or None


def unread_of(facts: ModelFacts) -> str | None:
    """The part of the model that the analysis cannot read, which makes its need unknown; None if it read all."""
    if facts.elsewhere is not None:
        return f"its weights are in another repository, which config.json names as {facts.elsewhere}"
    if facts.unknown is not None and not facts.encoder:
        return f"this version does not know what its layers keep of a sequence: {facts.unknown}"
    return None


def unknown_need(unread: str) -> Need:
    """An unknown need, with the note how to state it."""
    return Need(
        None, refused=(Reason.METADATA_UNKNOWN,), notes=(f"{unread}; set resources.gpu_memory and resources.gpus",)
    )
