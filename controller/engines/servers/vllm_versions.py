"""The architectures that each version of vLLM serves, by its own registry (`make vllm-architectures`)."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from controller.domain.model_facts import ModelFacts
from controller.engines.arguments.flags import stated, text
from controller.engines.containers import DEFAULT_IMAGES
from schemas.manifest.deployment import DeploymentSpec

_FILE: Final = Path(__file__).with_name("vllm_architectures.json")
_TAG: Final = re.compile(r"[^/]*vllm[^/:]*:([^/:]+)", re.ASCII)
# In a tag: alone, or after `v` or `vllm`. Other versions are of CUDA, ROCm or Python; 25.09 is a date.
_VERSION: Final = re.compile(r"(?:(?<![a-z0-9.])|(?<![a-z])v|vllm[-_]?v?)(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)", re.ASCII)
_LATEST_MAJOR: Final = 1
# Models that no version serves, with the reason.
_NEVER: Final[Mapping[str, str]] = {
    "T5ForConditionalGeneration": "it has no encoder-decoder models of text",
    "MT5ForConditionalGeneration": "it has no encoder-decoder models of text",
}
# The suffixes of pooling models that its registry lacks.
_POOLING_SUFFIXES: Final = (
    "ForTextEncoding", "ForSequenceClassification", "ForTokenClassification", "ForAudioClassification",
    "ForImageClassification", "ForVideoClassification", "ClassificationModel", "ForRewardModeling", "RewardModel",
    "Model",
)  # fmt: skip
_GENERATING_SUFFIXES: Final = ("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel")
_POOLING_RUNNERS: Final = frozenset({"pooling", "draft"})
_POOLING_TASKS: Final = frozenset({"embed", "embedding", "classify", "score", "reward", "encode", "token_embed"})


def refusal(spec: DeploymentSpec, architectures: Sequence[str]) -> str | None:
    """Why vLLM does not serve these architectures; None if it does, or may do so by Transformers' code.

    The version is that of the image's tag; between two known versions, the lower counts. If the version is unknown, as
    for a program that is installed on the host, any version from the default image's on may run.
    """
    if (
        text(spec, "model-impl") == "transformers"
        or stated(spec, ("hf-overrides", "model-class-overrides")) is not None
    ):
        return None
    if (never := next((name for name in architectures if name in _NEVER), None)) is not None:
        return f"vllm does not support {never}: {_NEVER[never]}"
    served: Mapping[str, Sequence[Sequence[str]]] = _data()["architectures"]
    spans = {name: served[name] for name in architectures if name in served}
    version = image_version(spec)
    known: list[str] = _data()["versions"]
    if not spans or (version is not None and _number(version) < _number(known[0])):
        return None
    meant = _from_default(known) if version is None else [_nearest(known, version)]
    alike = [served[other] for name in spans for other in _convertible(name) if other in served]
    if any(_within(span, candidate) for span in (*spans.values(), *alike) for candidate in meant):
        return None
    name = next(iter(spans))
    return f"{_named(version)} does not support {name}: {_why(name, spans[name], meant)}"


def pools(spec: DeploymentSpec, facts: ModelFacts) -> bool:
    """Whether vLLM answers with vectors or scores."""
    runner, convert = text(spec, "runner"), text(spec, "convert")
    if runner not in (None, "auto"):
        return runner in _POOLING_RUNNERS
    if convert not in (None, "auto", "none") or text(spec, "task") in _POOLING_TASKS:
        return True
    by_name = (_pools_by_name(name) for name in facts.architectures)
    return facts.pooling or next((pooling for pooling in by_name if pooling is not None), False)


def _pools_by_name(name: str) -> bool | None:
    """Whether an architecture pools; None if its name does not show it."""
    if name in _data()["architectures"]:
        return name in _data()["pooling"]
    if name.endswith(_GENERATING_SUFFIXES):
        return False
    return True if name.endswith(_POOLING_SUFFIXES) else None


def _convertible(name: str) -> list[str]:
    """The architectures that vLLM converts to a pooling model of this name (_normalize_arch)."""
    suffixes = (*_GENERATING_SUFFIXES, *_POOLING_SUFFIXES)
    own = next((suffix for suffix in suffixes if name.endswith(suffix)), None)
    return [] if own is None else [name.removesuffix(own) + suffix for suffix in suffixes]


def image_version(spec: DeploymentSpec) -> str | None:
    """The version of vLLM in the tag of the spec's image, or of the default image; None: unknown."""
    if spec.runtime != "docker":
        return None
    return _version_in(spec.image or DEFAULT_IMAGES["vllm"])


def _version_in(image: str) -> str | None:
    tag = _TAG.search(image)
    versions = _VERSION.findall(tag[1]) if tag is not None else []
    return next((version for version in versions if _number(version)[0] <= _LATEST_MAJOR), None)


@cache
def _data() -> dict[str, Any]:
    registry: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return registry


def _number(version: str) -> tuple[int, ...]:
    parts = tuple(int(part) for part in version.split("."))
    return parts + (0,) * (3 - len(parts))


def _nearest(known: Sequence[str], version: str) -> str:
    return max((other for other in known if _number(other) <= _number(version)), key=_number)


def _from_default(known: Sequence[str]) -> list[str]:
    default = _version_in(DEFAULT_IMAGES["vllm"])
    least = known[-1] if default is None else _nearest(known, default)
    return [version for version in known if _number(version) >= _number(least)]


def _within(spans: Iterable[Sequence[str]], version: str) -> bool:
    return any(_number(first) <= _number(version) <= _number(last) for first, last in spans)


def _named(version: str | None) -> str:
    return "vllm" if version is None else f"vllm {version}"


def _why(name: str, spans: Sequence[Sequence[str]], meant: Sequence[str]) -> str:
    if name in _data()["plugins"]:
        return "it needs a plugin of vLLM's"
    earlier = [last for _, last in spans if _number(last) < _number(meant[0])]
    later = [first for first, _ in spans if _number(first) > _number(meant[-1])]
    spans_text = [f"{earlier[-1]} is the last version that does"] if earlier else []
    spans_text += [f"{later[0]} is the first version that does"] if later else []
    return f"{', and '.join(spans_text)}; set image, or args: {{model-impl: transformers}}"
