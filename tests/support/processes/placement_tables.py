"""The hosts and models of the placement cases: sizes of real inventories and real models, in bytes."""

from collections.abc import Mapping
from typing import Any, Final

MIB: Final = 2**20
_NOTHING: Final = {"ram": 0, "vram": 0}

# name: GPUs as [vendor, bytes each, count], host memory, and what is reserved of the host and of each GPU
_HOSTS: Final[dict[str, tuple[list[tuple[str, int, int]], int, dict[str, int]]]] = {
    "w24a": ([("nvidia", 26015170560, 1)], 67183366144, _NOTHING),
    "w24b": ([("nvidia", 25757220864, 1)], 67145945088, {"ram": 2147483648, "vram": 1073741824}),
    "w24c": ([("nvidia", 26015170560, 1)], 67183366144, _NOTHING),
    "w24x2": ([("nvidia", 26015170560, 2)], 134366732288, _NOTHING),
    "w24x8": ([("nvidia", 25769803776, 8)], 68719476736, {"ram": 2147483648, "vram": 0}),
    "w16x2": ([("nvidia", 17171480576, 2)], 67183366144, _NOTHING),
    "w16x2b": ([("nvidia", 17171480576, 2)], 67183366144, _NOTHING),
    "w16x4": ([("nvidia", 17171480576, 4)], 134366732288, _NOTHING),
    "a80-1": ([("nvidia", 85899345920, 2)], 507012829184, {"ram": 2147483648, "vram": 0}),
    "a80-2": ([("nvidia", 85899345920, 2)], 185695764480, {"ram": 2147483648, "vram": 0}),
    "a80-3": ([("nvidia", 85899345920, 2)], 185695780864, {"ram": 2147483648, "vram": 0}),
    **{f"h80-{n}": ([("nvidia", 85899345920, 8)], 1610612736000, _NOTHING) for n in range(1, 5)},
    "h141": ([("nvidia", 151511121920, 8)], 1610612736000, _NOTHING),
    "r16": ([("amd", 17163091968, 1)], 67191529472, {"ram": 2147483648, "vram": 0}),
    "r16x2": ([("amd", 17163091968, 2)], 67191529472, {"ram": 2147483648, "vram": 0}),
    "mac": ([("apple", 187 * 2**30, 1)], 187 * 2**30, _NOTHING),
    "lin": ([("nvidia", 85899345920, 2)], 507012829184, _NOTHING),
}
_MORE: Final[dict[str, dict[str, Any]]] = {"mac": {"os": "darwin", "arch": "arm64"}}

# name: bytes needed, attention heads, heads of keys and values, vocabulary, heads of the vision tower
_MODELS: Final[dict[str, tuple[int, int, int | None, int | None, int | None]]] = {
    "q06b": (3951444041, 16, 8, 151936, None),
    "q7b": (20424963276, 28, 4, 152064, None),
    "q8b": (21805248512, 32, 8, 151936, None),
    "q14b": (37595644313, 40, 8, 152064, None),
    "q30moe": (75424577945, 32, 4, 151936, None),
    "q32b": (80776579481, 64, 8, 151936, None),
    "r1": (828451556951, 128, 128, 129280, None),
    "bge": (1062417526, 12, None, None, None),
    "s1g": (3693671873, 64, 8, 152064, None),
    "s14g": (20186346291, 64, 8, 152064, None),
    "s20g": (27917287424, 64, 8, 152064, None),
    "s22h25": (30494267801, 25, 5, 152064, None),
    "s22v": (30494267801, 32, 8, 10001, None),
    "s40h28": (53687091200, 28, 4, 152064, None),
    "s225vl": (292057776128, 24, 8, 248064, 16),
}
_ENGINES: Final = ["vllm", "sglang", "llama-cpp", "transformers"]


def host_of(name: str, **more: Any) -> dict[str, Any]:
    """A host as in a file of simulated hosts. The ledger counts whole MiB, so sizes are rounded down."""
    gpus, ram, reserved = _HOSTS[name]
    foreign = more.pop("foreign_memory", "0MiB")
    kinds = [
        {"model": f"GPU {size // 10**9}", "vendor": vendor, "memory": mib(size), "count": n, "foreign_memory": foreign}
        for vendor, size, n in gpus
    ]
    kept = {"host_memory": mib(reserved["ram"]), "gpu_memory": mib(reserved["vram"])}
    host = {"name": name, "gpus": kinds, "host_memory": mib(ram), "reserved": kept, "engines": _ENGINES}
    return {**host, **_MORE.get(name, {}), **more}


def args_of(model: str, *, need_per_gpu: str | None = None) -> dict[str, Any]:
    """The simulated engine's args for a model with these figures."""
    need, heads, kv_heads, vocab, vision_heads = _MODELS[model]
    figures: Mapping[str, int | None] = {
        "heads": heads, "kv_heads": kv_heads, "vocab": vocab, "vision_heads": vision_heads,
    }  # fmt: skip
    amount = {"memory": f"{-(-need // MIB)}MiB"} if need_per_gpu is None else {"need_per_gpu": need_per_gpu}
    return amount | {name: figure for name, figure in figures.items() if figure is not None}


def need_mib(model: str) -> int:
    """The model's whole need."""
    return -(-_MODELS[model][0] // MIB)


def mib(size: int) -> str:
    """Bytes as whole MiB, rounded down."""
    return f"{size // MIB}MiB"
