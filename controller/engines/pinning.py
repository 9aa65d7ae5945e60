"""Pins the hub's models of a spec to the commits of its revision, so that all its starts run the same weights."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from controller.engines.arguments.flags import args_of
from controller.engines.estimates.drafts import (
    SGLANG_REVISION,
    VLLM_SPECULATION,
    sglang_draft,
    vllm_draft,
    vllm_speculation,
)
from controller.engines.estimates.model_analysis import model_fetches
from schemas.hub import hub_reference
from schemas.manifest.deployment import DeploymentSpec
from schemas.wire import ModelFetch

_Draft: TypeAlias = Callable[[DeploymentSpec], str | None]
_DRAFTS: Final[Mapping[str, _Draft]] = {
    "vllm": vllm_draft, "sglang": sglang_draft, "transformers": lambda _spec: None,
}  # fmt: skip


def pinned_models(spec: DeploymentSpec, engine: str, commits: Mapping[str, str]) -> DeploymentSpec:
    """The spec with commits instead of branches and tags, if the engine loads models of the hub.

    `commits`: those of the revision, by `org/name@revision`.
    """
    if not commits or engine not in _DRAFTS:
        return spec
    changes: dict[str, Any] = {}
    if spec.model is not None and (model := _pinned(spec.model, commits)) != spec.model:
        changes["model"] = model
    draft = _DRAFTS[engine](spec)
    if draft is not None and (pinned := _pinned(draft, commits)) != draft:
        changes["args"] = _with_draft_revision(spec, engine, pinned.partition("@")[2])
    adapters = {name: _pinned(place, commits) for name, place in spec.serving.adapters.items()}
    if adapters != spec.serving.adapters and model_fetches(spec):  # else the server has them in its own cache
        changes["serving"] = spec.serving.model_copy(update={"adapters": adapters})
    return spec.model_copy(update=changes) if changes else spec


def named_fetches(fetches: Iterable[ModelFetch], commits: Mapping[str, str]) -> tuple[ModelFetch, ...]:
    """The fetches, each with the branch or tag that the spec names."""
    names = {(key.rpartition("@")[0], commit): key.rpartition("@")[2] for key, commit in commits.items()}
    return tuple(replace(fetch, name=names.get((fetch.repo, fetch.revision), "")) for fetch in fetches)


def _pinned(place: str, commits: Mapping[str, str]) -> str:
    """`hf:org/name@commit` if the revision keeps a commit."""
    scheme, _, reference = place.partition(":")
    if scheme != "hf":
        return place
    repo, _, revision = reference.partition("@")
    commit = commits.get(hub_reference(repo, revision))
    return place if commit is None else f"hf:{repo}@{commit}"


def _with_draft_revision(spec: DeploymentSpec, engine: str, commit: str) -> dict[str, Any]:
    """The args with the draft model's revision, in any of its spellings."""
    flags = SGLANG_REVISION if engine == "sglang" else VLLM_SPECULATION
    others = {arg.name for arg in args_of(spec) if arg.flag in flags}
    kept = {name: value for name, value in spec.args.items() if name not in others and not _dotted(name, flags)}
    value: Any = commit if engine == "sglang" else {**vllm_speculation(spec), "revision": commit}
    return {**kept, flags[0]: value}


def _dotted(name: str, flags: tuple[str, ...]) -> bool:
    return name.partition(".")[0].replace("_", "-") in flags
