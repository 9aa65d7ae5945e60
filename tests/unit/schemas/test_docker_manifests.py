"""`runtime: docker` in a manifest: which images, volumes and sizes are accepted, and what a refusal says."""

from typing import Any

import pytest
from pydantic import ValidationError

from controller.domain.spec_changes import change_between
from schemas.manifest.deployment import DeploymentSpec

DIGEST = "sha256:" + "0f" * 32
VLLM = {"engine": "vllm", "model": "hf:org/name"}
DOCKER = {**VLLM, "runtime": "docker"}


def spec(**fields: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate(fields)


@pytest.mark.parametrize(
    "image",
    [
        "busybox", "vllm/vllm-openai:v0.28.0-cu129", "localhost:5000/team/server", "registry.example/a/b__c:1.0_x",
        f"ghcr.io/ggml-org/llama.cpp@{DIGEST}", f"[::1]:5000/x:1@{DIGEST}",
    ],
)  # fmt: skip
def test_names_of_images(image: str) -> None:
    assert spec(**DOCKER, image=image).image == image


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({**VLLM, "image": "a"}, "image: requires runtime: docker"),
        ({**VLLM, "docker": {"pull": "always"}}, "docker: requires runtime: docker"),
        ({"command": ["x"], "runtime": "docker"}, "image: is required by a command"),
        *(
            ({**DOCKER, "image": image}, "is not a valid image")
            for image in ("", "a/Upper", "a b", "-flag", "a:tag:tag", "a@sha256:12", "https://a/b", "a/../b", "a/")
        ),
        ({**DOCKER, "docker": {"shm_size": 8}}, "is not a valid size"),
        ({**DOCKER, "docker": {"shm_size": "0GiB"}}, "must be more than 0"),
        ({**DOCKER, "docker": {"pull": "sometimes"}}, "missing"),
        ({**DOCKER, "docker": {"shm": "8GiB"}}, "shm"),
        ({**DOCKER, "docker": {"volumes": {"srv": "/x"}}}, "srv: must be an absolute path"),
        ({**DOCKER, "docker": {"volumes": {"/a/../b": "/x"}}}, "contains '..'"),
        ({**DOCKER, "docker": {"volumes": {"/a:b": "/x"}}}, "must have no ':'"),
        ({**DOCKER, "docker": {"volumes": {"/a\nb": "/x"}}}, "no control characters"),
        ({**DOCKER, "docker": {"volumes": {"/a": "x"}}}, "place in the container, 'x', must be an absolute path"),
        ({**DOCKER, "docker": {"volumes": {"/a": "/x:exec"}}}, "must have no ':'"),
        ({**DOCKER, "docker": {"volumes": {"/a": "/"}}}, "would hide the whole image"),
        ({**DOCKER, "docker": {"volumes": {"/a": "//"}}}, "would hide the whole image"),
        ({**DOCKER, "docker": {"volumes": {"/a": "/x/./../"}}}, "contains '..'"),
        ({**DOCKER, "docker": {"volumes": {"/a": "/proc/1"}}}, "belongs to the kernel"),
        ({**DOCKER, "docker": {"volumes": {"/a": "/x/:ro", "/b": "/x"}}}, "/b and /a both go to /x"),
        ({"command": ["x", "{hsot}"]}, "known: {port}, {host}, {model}, {gpu_count}"),
    ],
)
def test_refusals(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as raised:
        spec(**fields)
    assert words in str(raised.value)


def test_sizes_modes_and_defaults() -> None:
    plain = spec(**DOCKER)
    assert (plain.docker.shm_size, plain.docker.volumes, plain.docker.pull) == ("auto", {}, "missing")
    given = spec(**DOCKER, docker={"shm_size": "8GiB", "volumes": {"/a": "/x:ro", "/b": "/y"}, "pull": "never"})
    assert given.docker.shm_size == 8192
    assert DeploymentSpec.model_validate(given.model_dump(mode="json")) == given
    assert spec(**VLLM, docker={}) == spec(**VLLM), "an empty section says nothing"


@pytest.mark.parametrize("change", [{"image": "other/image:1"}, {"docker": {"pull": "always"}}, {"runtime": "process"}])
def test_each_change_makes_a_revision(change: dict[str, Any]) -> None:
    assert change_between(spec(**DOCKER), spec(**{**DOCKER, **change})) == "replaced"


def test_specs_of_earlier_versions_are_unchanged() -> None:
    """A spec that was stored before the section existed has not changed, so it gets no new revision."""
    stored = spec(**VLLM).model_dump(mode="json")
    del stored["docker"]
    assert change_between(DeploymentSpec.model_validate(stored), spec(**VLLM)) == "unchanged"
