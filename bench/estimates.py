"""Writes docs/estimates.md, the need of well-known models by the code that places them; and the catalog's data.

make estimates                 writes the page and the catalog's models
make estimates ARGS=--check    fails where they are not up to date
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from controller.domain.model_facts import ModelFacts, facts_to_json
from controller.domain.placement import Layout, Need
from controller.engines.estimates.memory import cache_bytes_per_token
from controller.engines.registry import engine_for
from controller.model_files.config import with_config
from controller.scheduling.estimate import asks_for
from schemas.manifest.deployment import DeploymentSpec

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
MODELS: Final = DOCS / "models.yaml"
PAGE: Final = DOCS / "estimates.md"
CATALOG: Final = DOCS.parent / "controller" / "engines" / "well_known_models.json"
H100_MIB: Final = 80 * 1024
CONTEXT: Final = 8192
SEQUENCES: Final = 16
HEAD: Final = """\
# Estimates

<!-- Written by `make estimates` from docs/models.yaml. Do not edit. -->

This page shows what Gpuward estimates for well-known models, for 16 sequences of 8192 tokens at once. It uses the
published configs in [models.yaml](models.yaml) and the code that places models.

The memory of a GPU is the sum of its parts. `gpuward describe` shows them for instances.

- **weights**: the tensors in the type that the engine works in, divided by tensor parallelism, and by layers over a
  pipeline. Adapters that the args name are added.
- **cache**: keys and values of all tokens. A token takes in each layer `kv heads x (head size of keys + of values)`
  elements. With multi-head latent attention it takes `kv_lora_rank + qk_rope_head_dim`, and sparse attention adds an
  index. A layer with a sliding window keeps no more than the window and the tokens of one step; on SGLang it keeps all.
  Encoders keep nothing, and models that return vectors or scores one sequence. An FP8 cache takes one byte for each
  element. Heads are read for each layer, where they differ.
- **states**, in the cache too: layers of Mamba, linear attention or a short convolution keep one state of each running
  sequence. See below.
- **activations**: further memory of a step of the model. **images**: the memory of a vision tower.
- **context**, **graphs**, **collectives**: memory of CUDA, captured graphs and NCCL, which servers do not count.

The source of each figure is next to it in `controller/engines/estimates/memory.py` and
`controller/engines/servers/model_server.py`.

Without stated context and concurrency, an instance on vLLM or SGLang is estimated for the same 16 sequences of 8192
tokens. A shorter context of the model's own replaces the 8192. If that fits nowhere, it is estimated for one
sequence. On llama.cpp the default is 4 sequences. State context and concurrency in `args`, and both the estimate and
the server's command line follow:

| engine | context | sequences |
|---|---|---|
| vLLM | `max-model-len` | `max-num-seqs` |
| SGLang | `context-length` | `max-running-requests` |
| llama.cpp | `ctx-size` | `parallel` |

The tokens in a step are estimated for 256 requests, and vLLM on a part of a GPU is limited to that number.

**States.** vLLM keeps tokens and states in blocks of one size: a block is the smallest number of tokens, in steps of
16, that takes no less than a state. With prefix caching, its default, each sequence keeps two states of each layer. It
starts with no more sequences than it has blocks, so Gpuward passes at most what the cache holds as `max-num-seqs`, also
on whole GPUs. SGLang keeps states in a pool, whose share of the memory is `mamba-full-memory-ratio` to 1.
`llama-server` keeps a state for each slot, in 32 bits.

**Unknown needs.** Where a config has a kind of layer that Gpuward does not know, or names another repository with a
part of the weights, as Ultravox does, the need is unknown (`metadata_unknown`). It is never guessed: state
`resources.gpu_memory`, and it is started on trust as below.

**Versions of vLLM.** Which architectures vLLM serves is read from the registry in its package, for each version
(`make vllm-architectures`), and compared with the version in the image's tag. Where the version is unknown, as for a
program on the host, an architecture is refused only if no version from that of the default image on has it.
`args: {model-impl: transformers}` requests Transformers' own code, and is not compared.

**Stated memory.** With `resources: {gpu_memory: 20GiB}` the model is still read. Degrees follow from the GPUs:
`gpus: 2` starts vLLM and SGLang with tensor parallelism of 2. The server gets the longest context up to the default,
and then as many sequences as the memory holds. Where weights and one sequence exceed it, the instance is refused with
`need_gt_stated` and the figure. A model that the controller cannot read (a gated one, no network, a folder of the
worker alone) is started on trust: degrees follow from the GPUs or from `parallel`, and `gpuward plan` shows the
assumptions. SGLang on a shared GPU then needs `context-length` and `max-running-requests`. Without a stated memory,
such a model needs `gpu_memory: all` and a number of GPUs.

Flags that leave out a part of a model are read: `language-model-only`, `limit-mm-per-prompt` with no images and no
videos, `mm-encoder-only`, and SGLang's `language-only`, `encoder-only` and `enable-multimodal: false`.

Estimates are made to hold, not to be tight: activations are those of a batch of 8192 tokens, as vLLM uses on large
GPUs. They leave out what only some models have: videos, several images at once, speculative decoding, and CUDA graphs
of unusual sizes.

## Figures
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A model of the page."""

    name: str
    source: str
    facts: ModelFacts
    need: Need
    layout: Layout | None  # the first layout of an instance that fits GPUs of 80 GiB


def facts_of(entry: dict[str, Any]) -> ModelFacts:
    """A model's facts, from its entry of the data file, read as its config.json would be."""
    weights = entry["weights"]
    bare = ModelFacts(
        entry.get("format", "safetensors"), weights, entry.get("dtypes", {"BF16": weights}), entry["parameters"]
    )
    return with_config(bare, entry["config"])


def row_of(entry: dict[str, Any]) -> Row:
    facts = facts_of(entry)
    gguf = facts.format == "gguf"
    args = {"ctx-size": CONTEXT * SEQUENCES, "parallel": SEQUENCES}
    spec = DeploymentSpec.model_validate(
        {
            "engine": "llama-cpp" if gguf else "vllm",
            "model": "gguf:/model.gguf" if gguf else "hf:org/name",
            "args": args if gguf else {"max-model-len": CONTEXT, "max-num-seqs": SEQUENCES},
            "resources": {"max_workers": 1 if gguf else 4},
        }
    )
    engine = engine_for(spec)
    need = engine.need(spec, facts_to_json(facts))
    layouts = asks_for(spec, need, engine, instance="", deployment_uid="").layouts
    fits = next(
        (layout for layout in layouts if layout.memory_mib <= H100_MIB and layout.gpus <= 8 * layout.workers), None
    )
    return Row(entry["name"], entry["source"], facts, need, fits)


def page() -> str:
    rows = [row_of(entry) for entry in yaml.safe_load(MODELS.read_text(encoding="utf-8"))]
    lines = [
        HEAD,
        "| model | weights, GiB | cache per token, bytes | one GPU, GiB | smallest layout on H100 80 GiB | each, GiB |",
        "|---|---:|---:|---:|---|---:|",
        *(_line(row) for row in rows),
        "",
        "The parts of the GPU that holds most in the smallest layout, in MiB:",
        "",
        "| model | parts |",
        "|---|---|",
        *(f"| {row.name} | {_parts(row)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    facts, layout = row.facts, row.layout
    # By default llama.cpp keeps F16 and vLLM the model's own type, which has two bytes in all of these.
    per_token = cache_bytes_per_token(facts, 2)
    assert per_token is not None
    cells = [
        f"[{row.name}]({row.source})",
        f"{facts.weight_bytes / 2**30:.2f}",
        f"{per_token:,.0f}",
        f"{row.need.shares[0].memory_mib / 1024:.1f}",
        "none" if layout is None else _words(layout),
        "" if layout is None else f"{layout.memory_mib / 1024:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _words(layout: Layout) -> str:
    degrees = [f"{name} {n}" for name, n in (("tp", layout.tp), ("pp", layout.pp)) if n > 1]
    where = (
        f"{layout.workers} workers x {layout.gpus // layout.workers} GPUs"
        if layout.workers > 1
        else (f"{layout.gpus} GPU{'s' if layout.gpus > 1 else ''}")
    )
    return f"{where} ({', '.join(degrees)})" if degrees else where


def _parts(row: Row) -> str:
    layout = row.layout
    if layout is None:
        return ""
    share = next(s for s in row.need.shares if (s.tp, s.pp, s.dp) == (layout.tp, layout.pp, layout.dp))
    return ", ".join(f"{name} {size:,}" for name, size in share.parts.items())


def catalog() -> str:
    """The models of the catalog, with the metadata that an analysis would read.

    GGUF files are left out, since the catalog does not choose among the several files of a repository.
    """
    entries = [entry for entry in yaml.safe_load(MODELS.read_text(encoding="utf-8")) if "format" not in entry]
    models = [
        {
            "model": "hf:" + "/".join(entry["source"].split("/")[3:5]),
            "source": entry["source"],
            "facts": facts_to_json(facts_of(entry)),
        }
        for entry in entries
    ]
    return "[\n" + ",\n".join(json.dumps(model, sort_keys=True) for model in models) + "\n]\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the need of well-known models to docs/estimates.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is not up to date")
    options = parser.parse_args()
    failed = 0
    for path, made in ((PAGE, page()), (CATALOG, catalog())):
        if options.check:
            same = path.exists() and path.read_text(encoding="utf-8") == made
            print(f"{path.name} is up to date" if same else f"{path} is not up to date: run `make estimates`")
            failed |= not same
        else:
            path.write_text(made, encoding="utf-8")
            print(f"wrote {path}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
