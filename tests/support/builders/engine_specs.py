"""Models and specs for tests of engines."""

from dataclasses import replace
from typing import Any

from controller.domain.model_facts import ModelFacts, facts_to_json
from controller.domain.placement import Ask, Need
from controller.engines.base import EngineProcess, Launch
from controller.engines.registry import engine_for, validate
from controller.scheduling.estimate import asks_for
from schemas.manifest.deployment import DeploymentSpec

GIB = 1024
LLAMA = ModelFacts(
    "safetensors", 16_060_522_496, {"BF16": 16_060_522_496}, 8_030_261_248, ("LlamaForCausalLM",), "llama", "bfloat16",
    layers=32, hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8, head_dim=128, vocab=128_256,
    context_length=131_072,
)  # fmt: skip
QUANTISED = replace(LLAMA, format="gguf", weight_bytes=4_920_739_232, dtypes={"Q4_K": 4_920_739_232}, dtype=None)
BERT = ModelFacts(
    "safetensors", 437_955_512, {"F32": 437_955_512}, 109_482_752, ("BertModel",), "bert", "float32", layers=12,
    hidden_size=768, intermediate_size=3072, heads=12, kv_heads=12, head_dim=64, vocab=30_522, context_length=512,
    encoder=True,
)  # fmt: skip


def spec(engine: str, **fields: Any) -> DeploymentSpec:
    model = "gguf:/m.gguf" if engine == "llama-cpp" else "hf:org/name"
    return DeploymentSpec.model_validate({"engine": engine, "model": model} | fields)


def process(wanted: DeploymentSpec, launch: Launch) -> EngineProcess:
    validate(wanted)
    return engine_for(wanted).process(wanted, launch)


def need(engine: str, facts: ModelFacts = LLAMA, **fields: Any) -> Need:
    wanted = spec(engine, **fields)
    validate(wanted)
    return engine_for(wanted).need(wanted, facts_to_json(facts))


def asks(engine: str, facts: ModelFacts = LLAMA, **fields: Any) -> list[Ask]:
    wanted = spec(engine, **fields)
    asked: Ask | None = asks_for(
        wanted, need(engine, facts, **fields), engine_for(wanted), instance="i", deployment_uid="d"
    )
    found = []
    while asked is not None:
        found.append(asked)
        asked = asked.otherwise
    return found


ONE = Launch(gpu_count=1, memory_mib=20 * GIB, gpu_mib=80 * GIB, context=8192, sequences=16)
