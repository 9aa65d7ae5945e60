"""All starts of a revision run the commits that it keeps: of its model, its draft model and its adapters."""

import json
from typing import Any

import pytest

from controller.decide.start_command import start_payload
from schemas.manifest.deployment import DeploymentSpec

MAIN, DRAFT, LORA = "a" * 40, "b" * 40, "c" * 40
COMMITS = {"org/model@main": MAIN, "org/draft@main": DRAFT, "org/draft@v2": DRAFT, "org/lora@main": LORA}


def payload(commits: dict[str, str] = COMMITS, **fields: Any) -> dict[str, Any]:
    spec = DeploymentSpec.model_validate({"model": "hf:org/model", **fields})
    return start_payload(spec, deployment="d", deployment_uid="u", gpus=(), engine=fields["engine"], commits=commits)


def after(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def fetched(order: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    return [(one["repo"], one["revision"], one["name"], one["by_folder"]) for one in order["fetches"]]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_model_runs_at_its_commit(engine: str) -> None:
    order = payload(engine=engine)
    assert after(order["argv"], "--revision") == MAIN
    assert fetched(order) == [("org/model", MAIN, "main", False)]
    assert "--revision" not in payload({}, engine=engine)["argv"]


def test_transformers_takes_the_commit_with_the_name() -> None:
    assert payload(engine="transformers")["argv"][2] == f"org/model@{MAIN}"


def test_a_tag_is_another_reference_than_the_branch() -> None:
    order = payload(engine="vllm", model="hf:org/model@v1")
    assert after(order["argv"], "--revision") == "v1"
    assert after(payload({"org/model@v1": LORA}, engine="vllm", model="hf:org/model@v1")["argv"], "--revision") == LORA


@pytest.mark.parametrize(
    "args",
    [
        {"speculative-config": {"model": "org/draft", "num_speculative_tokens": 3}},
        {"speculative_config": json.dumps({"model": "org/draft", "num_speculative_tokens": 3})},
        {"speculative-config.model": "org/draft", "speculative-config.num_speculative_tokens": 3},
        {"speculative-config": {"model": "org/draft", "revision": "v2", "num_speculative_tokens": 3}},
    ],
)
def test_vllms_draft_model_runs_at_its_commit(args: dict[str, Any]) -> None:
    order = payload(engine="vllm", args=args)
    config = json.loads(after(order["argv"], "--speculative-config"))
    assert (config["model"], config["revision"], config["num_speculative_tokens"]) == ("org/draft", DRAFT, 3)
    assert order["argv"].count("--speculative-config") == 1
    assert ("org/draft", DRAFT) in [one[:2] for one in fetched(order)]


@pytest.mark.parametrize("revision", [{}, {"speculative-draft-model-revision": "v2"}])
def test_sglangs_draft_model_runs_at_its_commit(revision: dict[str, str]) -> None:
    order = payload(engine="sglang", args={"speculative-draft-model-path": "org/draft", **revision})
    assert after(order["argv"], "--speculative-draft-model-revision") == DRAFT
    assert ("org/draft", DRAFT) in [one[:2] for one in fetched(order)]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_adapters_are_loaded_from_the_folder_of_their_commit(engine: str) -> None:
    adapters = {"one": "hf:org/lora", "two": "path:/loras/a@b"}
    order = payload(engine=engine, serving={"adapters": adapters})
    assert "one=org/lora" in order["argv"], "agents of earlier versions take it from the hub's newest"
    assert "two=/loras/a@b" in order["argv"]
    assert fetched(order)[1:] == [("org/lora", LORA, "main", True)]


def test_a_server_with_a_cache_of_its_own_gets_the_models_commit_alone() -> None:
    order = payload(engine="vllm", env={"HF_HOME": "/own"}, serving={"adapters": {"one": "hf:org/lora"}})
    assert (after(order["argv"], "--revision"), order["fetches"]) == (MAIN, [])


def test_other_engines_and_folders_are_left_as_they_are() -> None:
    custom = payload(engine="custom", command=["serve", "{model}"])
    assert custom["argv"] == payload({}, engine="custom", command=["serve", "{model}"])["argv"]
    folder = payload(engine="vllm", model="path:/models/a")
    assert "--revision" not in folder["argv"]
