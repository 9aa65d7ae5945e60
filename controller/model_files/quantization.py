"""The quantisation in a config.json."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from controller.domain.model_facts import Quantization
from controller.model_files.config_fields import ConfigScopes, is_count, is_word

# Separate files for it, with their methods: of quantisers before Transformers 4.33, and of ModelOpt.
QUANTIZATION_FILES: Final[Mapping[str, str]] = {
    "hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq",
}  # fmt: skip
# Methods whose name gives the bits.
_BITS: Final[Mapping[str, int]] = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4, "awq": 4, "nvfp4": 4}
_MAX_GROUPS: Final = 64


def quantization_of(config: ConfigScopes) -> Quantization | None:
    """The quantisation; None: the weights have the config's dtype."""
    stated = config.value("quantization_config", "compression_config")
    if not isinstance(stated, dict):
        return None
    method = stated.get("quant_method")
    if not is_word(method):  # early llm-compressor wrote no name
        method = "compressed-tensors" if "config_groups" in stated else None
    if not isinstance(method, str):
        return None
    method = method.lower()
    return Quantization(method, next(_bits(stated, method), None))


def _bits(stated: Mapping[str, Any], method: str) -> Iterator[int]:
    """The bits of a weight by each field that may hold them, the most reliable first."""
    for name in ("bits", "w_bit", "weight_bits"):
        if is_count(stated.get(name)):
            yield int(stated[name])
    groups = stated.get("config_groups")  # compressed-tensors, ModelOpt
    for group in list(groups.values())[:_MAX_GROUPS] if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and is_count(weights.get("num_bits")):
            yield int(weights["num_bits"])
    if stated.get("load_in_4bit") is True:  # bitsandbytes
        yield 4
    if stated.get("load_in_8bit") is True:
        yield 8
    algorithm = str(stated.get("quant_algo", "")).lower()  # ModelOpt: FP8, NVFP4, W4A8_AWQ
    for name in (method, algorithm):
        if name in _BITS:
            yield _BITS[name]
