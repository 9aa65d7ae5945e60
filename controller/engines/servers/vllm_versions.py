"""Which architectures a version of vLLM serves, by its own registry (`make vllm-architectures`). Pure."""

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
# In a tag: of its own, after a `v` or `vllm`. Others are of CUDA, ROCm or Python. A date (25.09) is none.
_VERSION: Final = re.compile(r"(?:(?<![a-z0-9.])|(?<![a-z])v|vllm[-_]?v?)(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)", re.ASCII)
_LATEST_MAJOR: Final = 1
# A type of model that no version has had, with the reason.
_NEVER: Final[Mapping[str, str]] = {
    "T5ForConditionalGeneration": "it has no encoder-decoder models of text",
    "MT5ForConditionalGeneration": "it has no encoder-decoder models of text",
}
# The endings by which it takes an architecture that its registry lacks for a pooling model.
_POOLING_ENDINGS: Final = (
    "ForTextEncoding", "ForSequenceClassification", "ForTokenClassification", "ForAudioClassification",
    "ForImageClassification", "ForVideoClassification", "ClassificationModel", "ForRewardModeling", "RewardModel",
    "Model",
)  # fmt: skip
_GENERATING_ENDINGS: Final = ("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel")
_POOLING_RUNNERS: Final = frozenset({"pooling", "draft"})
_POOLING_TASKS: Final = frozenset({"embed", "embedding", "classify", "score", "reward", "encode", "token_embed"})


def refusal(spec: DeploymentSpec, architectures: Sequence[str]) -> str | None:
    """Why vLLM does not serve these architectures; None: it does, or may do so by Transformers' own code.

    The version is that of the image's tag. Of a tag between two known versions the lower one counts. Where the version
    is unknown, as for a program that is installed on the host, any from the default image's on may be meant.
    """
    if (
        text(spec, "model-impl") == "transformers"
        or stated(spec, ("hf-overrides", "model-class-overrides")) is not None
    ):
        return None
    if (never := next((one for one in architectures if one in _NEVER), None)) is not None:
        return f"vllm does not support {never}: {_NEVER[never]}"
    served: Mapping[str, Sequence[Sequence[str]]] = _data()["architectures"]
    spans = {one: served[one] for one in architectures if one in served}
    version = image_version(spec)
    known: list[str] = _data()["versions"]
    if not spans or (version is not None and _number(version) < _number(known[0])):
        return None
    meant = _from_default(known) if version is None else [_nearest(known, version)]
    alike = [served[one] for name in spans for one in _convertible(name) if one in served]
    if any(_within(one, candidate) for one in (*spans.values(), *alike) for candidate in meant):
        return None
    name = next(iter(spans))
    return f"{_named(version)} does not support {name}: {_why(name, spans[name], meant)}"


def pools(spec: DeploymentSpec, facts: ModelFacts) -> bool:
    """Whether vLLM answers with vectors or scores, so that nothing is generated."""
    runner, convert = text(spec, "runner"), text(spec, "convert")
    if runner not in (None, "auto"):
        return runner in _POOLING_RUNNERS
    if convert not in (None, "auto", "none") or text(spec, "task") in _POOLING_TASKS:
        return True
    by_name = (_pools_by_name(name) for name in facts.architectures)
    return facts.pooling or next((one for one in by_name if one is not None), False)


def _pools_by_name(name: str) -> bool | None:
    """Whether an architecture pools; None: its name does not show it."""
    if name in _data()["architectures"]:
        return name in _data()["pooling"]
    if name.endswith(_GENERATING_ENDINGS):
        return False
    return True if name.endswith(_POOLING_ENDINGS) else None


def _convertible(name: str) -> list[str]:
    """The architectures from which vLLM makes a pooling model of this name (_normalize_arch)."""
    ending = next((one for one in (*_GENERATING_ENDINGS, *_POOLING_ENDINGS) if name.endswith(one)), None)
    if ending is None:
        return []
    return [name.removesuffix(ending) + one for one in (*_GENERATING_ENDINGS, *_POOLING_ENDINGS)]


def image_version(spec: DeploymentSpec) -> str | None:
    """The version of vLLM in the tag of the spec's image, or of the default one; None: unknown."""
    if spec.runtime != "docker":
        return None
    return _version_in(spec.image or DEFAULT_IMAGES["vllm"])


def _version_in(image: str) -> str | None:
    tag = _TAG.search(image)
    found = _VERSION.findall(tag[1]) if tag is not None else []
    return next((one for one in found if _number(one)[0] <= _LATEST_MAJOR), None)


@cache
def _data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def _number(version: str) -> tuple[int, ...]:
    parts = tuple(int(part) for part in version.split("."))
    return parts + (0,) * (3 - len(parts))


def _nearest(known: Sequence[str], version: str) -> str:
    return max((one for one in known if _number(one) <= _number(version)), key=_number)


def _from_default(known: Sequence[str]) -> list[str]:
    default = _version_in(DEFAULT_IMAGES["vllm"])
    least = known[-1] if default is None else _nearest(known, default)
    return [one for one in known if _number(one) >= _number(least)]


def _within(spans: Iterable[Sequence[str]], version: str) -> bool:
    return any(_number(first) <= _number(version) <= _number(last) for first, last in spans)


def _named(version: str | None) -> str:
    return "vllm" if version is None else f"vllm {version}"


def _why(name: str, spans: Sequence[Sequence[str]], meant: Sequence[str]) -> str:
    if name in _data()["plugins"]:
        return "it needs a plugin of vLLM's"
    earlier = [last for _, last in spans if _number(last) < _number(meant[0])]
    later = [first for first, _ in spans if _number(first) > _number(meant[-1])]
    found = [f"{earlier[-1]} is the last version that does"] if earlier else []
    found += [f"{later[0]} is the first version that does"] if later else []
    return f"{', and '.join(found)}; set image, or args: {{model-impl: transformers}}"
