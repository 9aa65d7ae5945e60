"""Reserved flags and variables of llama-server against the file of llama.cpp that names its arguments."""

import pytest

from controller.engines.arguments.environment import power_of
from controller.engines.arguments.environment import reserved as reserved_variable
from controller.engines.arguments.privileges import OPTIONS
from controller.engines.arguments.switches import LLAMA_CPP_SWITCHES
from controller.engines.registry import engine_for, validate
from flags.conftest import llama_files, refused, taken_for_another
from flags.emitted import HOST, SHARED
from flags.llama_arguments import Argument, arguments
from support.builders.engine_specs import spec

TABLE = OPTIONS["llama-cpp"]
# Builds of 2025 had a context of the draft model's own.
OLDER = {"ctx-size-draft", "spec-draft-ctx-size", "cd"}
# Destinations that a reserved argument sets beside others which every deployment may set.
SHARED_DESTINATIONS = {
    "n_ctx", "n_batch", "n_ubatch", "n_parallel", "n_cache_reuse", "embedding", "use_jinja", "sampling.temp",
    "sampling.top_k", "sampling.top_p", "sampling.min_p",  # by presets, each of which also chooses a model
    "fit_params_min_ctx",  # of ctx-size, beside the context itself
    "sampling.grammar", "ui_config_json",  # by a file; the text itself is harmless
    "lora_adapters",  # lora is read for the estimate, lora-scaled is not
    "mmproj_use_gpu",  # mmproj-offload only keeps the vision tower off the GPU
    "speculative.types",  # spec-default: from n-grams, without a model
}  # fmt: skip
LAUNCHES = {
    "plain": {},
    "figures": {
        "args": {"ctx-size": "16k", "parallel": 4, "cache-type-k": "q8_0", "flash-attn": "on", "cont-batching": False}
    },
    "layers": {"args": {"n-gpu-layers": 20, "lora": ["/a", "/b"], "override-tensor": "exps=CPU"}, **HOST},
    "speculation": {"args": {"spec-type": "ngram-mod", "no-context-shift": True, "jinja": True, "warmup": False}},
}


@pytest.fixture(scope="module")
def known() -> list[Argument]:
    """Those of the newest build."""
    found = arguments(max(llama_files(), key=lambda file: int(file.parent.name.split("-")[-1].partition(".")[0])))
    assert len(found) > 200, "the file is not read rightly"
    return found


def bare(names: tuple[str, ...]) -> list[str]:
    return [name.lstrip("-") for name in names]


def is_reserved(name: str) -> bool:
    option = TABLE.destination(name)
    return option in TABLE.limits or option in TABLE.privileged


def test_no_spelling_of_a_reserved_argument_passes(known: list[Argument]) -> None:
    found = []
    for one in known:
        names = bare(one.names) if any(is_reserved(name) for name in bare(one.names)) else []
        found += [name for name in names if not refused("llama-cpp", name, "x") and not is_reserved(name)]
    assert set(found) <= {"kv-offload", "kvo"}, "kv-offload is the default; only its negation takes memory of the host"


def test_no_other_argument_sets_what_a_reserved_one_sets(known: list[Argument]) -> None:
    held = {part for one in known if any(map(is_reserved, bare(one.names))) for part in one.sets}
    found = {
        (name, part)
        for one in known
        if not any(map(is_reserved, bare((*one.names, *one.negated))))
        for part in one.sets & held - SHARED_DESTINATIONS
        for name in one.names
    }
    assert found == set()


def test_no_flag_is_taken_for_the_beginning_of_another(known: list[Argument]) -> None:
    names = {name[2:] for one in known for name in (*one.names, *one.negated) if name.startswith("--")}
    assert [name for name in sorted(names) if taken_for_another("llama-cpp", name)] == []


def test_each_listed_flag_is_an_argument(known: list[Argument]) -> None:
    names = {name for one in known for name in bare((*one.names, *one.negated))}
    assert {*TABLE.names, *TABLE.short, *TABLE.exact} - names - OLDER == set()


def test_short_spellings_are_those_of_the_server(known: list[Argument]) -> None:
    of = {name: one for one in known for name in bare((*one.names, *one.negated))}
    wrong = [s for s, long in TABLE.short.items() if s in of and long in of and of[s] is not of[long]]
    assert wrong == []
    unlisted = [
        name.lstrip("-")
        for one in known
        if any(map(is_reserved, bare(one.names)))
        for name in one.names
        if not name.startswith("--") and name.lstrip("-") not in TABLE.short
    ]
    assert unlisted == [], "a short form must be refused with its long name"


def test_switches_with_a_negated_form_are_those_of_the_server(known: list[Argument]) -> None:
    negated = {name[2:] for one in known for name in one.names if f"--no-{name.lstrip('-')}" in one.negated}
    assert LLAMA_CPP_SWITCHES - negated == {"mmap"}, "of builds before load-mode"
    assert negated <= LLAMA_CPP_SWITCHES


def test_no_variable_sets_a_reserved_argument(known: list[Argument]) -> None:
    found = [
        one.variable
        for one in known
        if one.variable
        and any(map(is_reserved, bare(one.names)))
        and reserved_variable(one.variable) is None
        and power_of(one.variable, "llama-cpp") is None
    ]
    assert set(found) <= {"HF_TOKEN"}


@pytest.mark.parametrize("name", LAUNCHES)
def test_every_flag_that_is_emitted_is_an_argument(known: list[Argument], name: str) -> None:
    of = {name: one for one in known for name in (*one.names, *one.negated)}
    wanted = spec("llama-cpp", **LAUNCHES[name])
    validate(wanted)
    argv = list(engine_for(wanted).process(wanted, SHARED).argv[1:])
    while argv:
        flag = argv.pop(0)
        assert flag in of, flag
        if not of[flag].switch:
            assert not argv.pop(0).startswith("--"), flag
