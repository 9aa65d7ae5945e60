"""Adapters of `serving`: their flags, the names by which servers know them, their memory, and engines without them."""

from typing import Any

import pytest

from controller.domain.spec_changes import change_between
from controller.engines.base import SpecError
from controller.engines.registry import engine_for, validate
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.parse import parse_spec
from schemas.manifest.problems import ManifestError
from support.builders.engine_specs import ONE, process, spec

TWO = {"adapters": {"support": "path:/lora/support", "org/sql": "hf:org/sql-lora"}}


@pytest.mark.parametrize(
    ("engine", "flags", "names"),
    [
        ("vllm", "--enable-lora --lora-modules support=/lora/support org/sql=org/sql-lora", ["support", "org/sql"]),
        (
            "sglang",
            "--enable-lora --lora-paths support=/lora/support org/sql=org/sql-lora",
            ["org/name:support", "org/name:org/sql"],
        ),
        ("simulated", "--lora-modules support=/lora/support org/sql=org/sql-lora", ["support", "org/sql"]),
    ],
)
def test_engines_load_them_by_their_flags_and_know_them_by_a_name(engine: str, flags: str, names: list[str]) -> None:
    started = process(spec(engine, serving=TWO), ONE)
    assert flags in " ".join(started.argv)
    assert started.adapters == dict(zip(TWO["adapters"], names, strict=True))
    plain = process(spec(engine), ONE)
    assert "lora" not in " ".join(plain.argv)
    assert plain.adapters == {}


def test_the_switch_is_given_once() -> None:
    wanted = spec("vllm", serving=TWO, args={"enable-lora": True, "max-lora-rank": 64})
    assert process(wanted, ONE).argv.count("--enable-lora") == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang", "auto"])
def test_they_are_read_for_the_estimate(engine: str) -> None:
    wanted = spec(engine, serving=TWO)
    work = engine_for(wanted).analysis(wanted)
    assert work is not None
    assert work.payload["adapters"] == [{"path": "/lora/support"}, {"repo": "org/sql-lora", "revision": "main"}]


@pytest.mark.parametrize(
    ("engine", "fields", "words"),
    [
        ("llama-cpp", {}, "serving.adapters: llama-server applies its adapters to every request; set args: .lora"),
        ("transformers", {}, "serving.adapters: engine transformers serves no adapters; use engine vllm or sglang"),
        ("custom", {"command": ["x", "{port}"]}, "serving.adapters: engine custom passes no flags"),
        ("auto", {"model": "gguf:/m.gguf"}, "serving.adapters: llama-server applies"),
        ("vllm", {"args": {"lora-modules": ["a=/a"]}}, "args.lora-modules: conflicts with serving.adapters"),
        ("sglang", {"args": {"lora-paths": ["a=/a"]}}, "args.lora-paths: conflicts with serving.adapters"),
        ("vllm", {"args": {"enable-lora": False}}, "args.enable-lora: is false, but serving.adapters"),
        ("vllm", {"serving": {"adapters": {"a": "hf:org/-x"}}}, "serving.adapters: a part of it begins with '-'"),
        ("sglang", {"args": {"served-model-name": "a:b"}}, "serving.adapters: sglang takes what follows ':'"),
    ],
)
def test_what_cannot_work_is_refused_with_the_field(engine: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        validate(spec(engine, **{"serving": TWO} | fields))


@pytest.mark.parametrize(
    ("serving", "words"),
    [
        ({"adapters": {"a b": "path:/a"}}, "'a b' is not a valid name of an adapter"),
        ({"adapters": {"a=b": "path:/a"}}, "is not a valid name of an adapter"),
        ({"adapters": {"a:b": "path:/a"}}, "is not a valid name of an adapter"),
        ({"adapters": {"{port}": "path:/a"}}, "is not a valid name of an adapter"),
        ({"adapters": {"a": "/a"}}, "a: must be path:/dir or hf:org/name"),
        ({"adapters": {"a": "path:a"}}, "must be path:/dir"),
        ({"adapters": {"a": "path:/a/../b"}}, "must be path:/dir"),
        ({"adapters": {"a": "path:/a{port}"}}, "without '=' and braces"),
        ({"adapters": {"a": "path:/a=b"}}, "without '=' and braces"),
        ({"adapters": {"a": "hf:org/name@main"}}, "must be path:/dir"),
        ({"adapters": {"a": "gguf:/a.gguf"}}, "must be path:/dir"),
        ({"adapters": {"a": "path:/a"}, "aliases": ["a"]}, "'a' is an alias and an adapter"),
        ({"routing": "sticky"}, "serving.routing"),
    ],
)
def test_other_names_and_places_are_refused(serving: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_spec({"engine": "simulated", "serving": serving}, name="x")
    text = " ".join(f"{problem.path}: {problem.message}" for problem in refused.value.problems)
    assert words in text


def test_a_change_of_adapters_alone_makes_a_revision() -> None:
    def given(**serving: Any) -> DeploymentSpec:
        return DeploymentSpec.model_validate({"engine": "simulated", "serving": serving})

    assert change_between(given(**TWO), given(**TWO)) == "unchanged"
    assert change_between(given(), given(**TWO)) == "replaced"
    assert change_between(given(**TWO), given(adapters={"support": "path:/other"})) == "replaced"
    assert change_between(given(**TWO), given(**TWO, routing="session", aliases=["b"])) == "updated"
