"""What is ordered for a container: image, command line, shared memory and mounts, engine by engine."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from controller.decide.start_command import start_payload
from controller.domain.model_facts import facts_to_json
from controller.domain.placement import Layout, PlannedClaim
from controller.engines.base import SpecError
from controller.engines.containers import DEFAULT_IMAGES, SHM_PER_GPU_MIB, pinned
from controller.engines.registry import engine_for, validate
from controller.settings import ControllerSettings
from schemas.image_names import repository_of, short_repository
from schemas.manifest.deployment import DeploymentSpec
from schemas.wire import StartOrder
from support.builders.engine_specs import GIB, LLAMA

DIGEST = "sha256:" + "0f" * 32
HUB = "hf:org/name"


def spec(**fields: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"runtime": "docker", **fields})


def payload(wanted: DeploymentSpec, gpus: int = 1, workers: int = 1) -> dict[str, Any]:
    validate(wanted)
    claims = [PlannedClaim(f"GPU-{n}", 40 * GIB, 0, exclusive=False, position=n) for n in range(gpus)]
    layout = Layout(gpus * workers, 40 * GIB, False, workers, tp=gpus * workers)
    return start_payload(
        wanted, deployment="d", deployment_uid="u", gpus=claims, layout=layout, gpu_mib=80 * GIB,
        leader="10.0.0.1" if workers > 1 else "", gang="i/1",
    )  # fmt: skip


def order(wanted: DeploymentSpec, gpus: int = 1, workers: int = 1) -> StartOrder:
    return msgspec.convert(payload(wanted, gpus, workers), StartOrder)


@pytest.mark.parametrize(
    ("fields", "gpus", "image", "program"),
    [
        ({"engine": "vllm", "model": HUB}, 1, DEFAULT_IMAGES["vllm"], ("vllm", "serve")),
        ({"engine": "sglang", "model": HUB}, 1, DEFAULT_IMAGES["sglang"], ("sglang", "serve")),
        ({"engine": "llama-cpp", "model": "gguf:/m.gguf"}, 1, DEFAULT_IMAGES["llama-cpp"], ("llama-server",)),
        (
            {"engine": "llama-cpp", "model": "gguf:/m.gguf", "args": {"n-gpu-layers": 0}}, 0,
            DEFAULT_IMAGES["llama-cpp-cpu"], ("llama-server",),
        ),
        ({"engine": "transformers", "model": HUB, "image": "own/one"}, 1, "own/one", ("transformers", "serve")),
        ({"engine": "vllm", "model": HUB, "image": "own/two:3"}, 1, "own/two:3", ("vllm", "serve")),
        ({"engine": "simulated", "image": "own/gpuward"}, 0, "own/gpuward", ("{simulated_engine}",)),
    ],
)  # fmt: skip
def test_each_engine_listens_where_the_agent_says(
    fields: dict[str, Any], gpus: int, image: str, program: tuple[str, ...]
) -> None:
    wanted = spec(**fields)
    ordered = order(wanted, gpus)
    assert ordered.container is not None
    assert ordered.container.image == image
    assert ordered.argv[: len(program)] == program
    if fields["engine"] != "simulated":
        flags = dict(pairwise(ordered.argv))
        assert (flags["--host"], flags["--port"]) == ("{host}", "{port}")
    assert not any("127.0.0.1" in part for part in ordered.argv)
    as_process = {**fields, "runtime": "process", "image": None}
    process = order(DeploymentSpec.model_validate(as_process), gpus)
    assert process.container is None
    assert not any("{host}" in part for part in process.argv)
    assert [part.replace("{host}", "127.0.0.1") for part in ordered.argv] == list(process.argv), "the same otherwise"


def test_only_a_default_image_follows_the_settings() -> None:
    assert payload(spec(engine="vllm", model=HUB))["default_image"] == "vllm"
    assert payload(spec(engine="llama-cpp", model="gguf:/m", args={"n-gpu-layers": 0}), 0)["default_image"] == (
        "llama-cpp-cpu"
    )
    assert "default_image" not in payload(spec(engine="vllm", model=HUB, image="own/one"))
    assert "default_image" not in payload(DeploymentSpec(engine="vllm", model=HUB))


def test_a_command_gets_the_host_in_both_runtimes() -> None:
    fields = {"command": ["serve", "--bind={host}:{port}", "{model}", "{gpu_count}"], "model": "path:/m"}
    in_container = order(spec(**fields, image="own/one"))
    assert in_container.argv == ("serve", "--bind={host}:{port}", "/m", "1")
    as_process = order(DeploymentSpec.model_validate(fields))
    assert as_process.argv == ("serve", "--bind=127.0.0.1:{port}", "/m", "1")


@pytest.mark.parametrize(
    ("fields", "gpus", "shm_mib"),
    [
        ({"engine": "vllm", "model": HUB}, 1, SHM_PER_GPU_MIB),
        ({"engine": "sglang", "model": HUB}, 8, 32 * GIB),
        ({"engine": "llama-cpp", "model": "gguf:/m.gguf"}, 2, None),
        ({"engine": "transformers", "model": HUB, "image": "a"}, 1, None),
        ({"command": ["x"], "image": "a", "resources": {"gpus": 2}}, 2, 2 * SHM_PER_GPU_MIB),
        ({"command": ["x"], "image": "a"}, 0, None),
        ({"engine": "vllm", "model": HUB, "docker": {"shm_size": "1GiB"}}, 8, GIB),
    ],
)
def test_shared_memory(fields: dict[str, Any], gpus: int, shm_mib: int | None) -> None:
    container = order(spec(**fields), gpus).container
    assert container is not None
    assert container.shm_size_mib == shm_mib


@pytest.mark.parametrize(
    ("fields", "models"),
    [
        ({"engine": "vllm", "model": HUB}, ()),
        (
            {"engine": "vllm", "model": "path:/m", "serving": {"adapters": {"a": "path:/a", "b": "hf:o/b"}}},
            ("/m", "/a"),
        ),
        ({"engine": "sglang", "model": HUB, "args": {"lora-paths": ["a=/a", "b=o/b"]}}, ("/a",)),
        (
            {"engine": "llama-cpp", "model": "gguf:/m-00001-of-00002.gguf", "args": {"mmproj": "/p.gguf"}},
            ("/m-00001-of-00002.gguf", "/m-00002-of-00002.gguf", "/p.gguf"),
        ),
        ({"engine": "vllm", "model": HUB, "args": {"speculative-config": {"model": "/draft"}}}, ("/draft",)),
        ({"command": ["x", "{model}"], "image": "a", "model": "path:/m"}, ("/m",)),
    ],
)  # fmt: skip
def test_what_the_engine_reads_is_mounted(fields: dict[str, Any], models: tuple[str, ...]) -> None:
    container = order(spec(**fields)).container
    assert container is not None
    assert container.models == models


def test_a_gang_uses_the_network_of_its_hosts() -> None:
    wanted = spec(engine="vllm", model=HUB, resources={"max_workers": 2})
    alone, gang = order(wanted).container, order(wanted, gpus=2, workers=2).container
    assert alone is not None
    assert gang is not None
    assert (alone.host_network, gang.host_network) == (False, True)


def test_llama_server_is_found_where_its_image_keeps_it() -> None:
    wanted = spec(engine="llama-cpp", model="gguf:/m.gguf")
    assert order(wanted).env["PATH"].split(":")[0] == "/app"
    assert "PATH" not in order(spec(engine="vllm", model=HUB)).env
    own = spec(engine="llama-cpp", model="gguf:/m.gguf", env={"PATH": "/opt/bin"})
    assert order(own).env["PATH"] == "/opt/bin", "the user's own comes last"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": HUB, "image": "a"}, "image: has one engine; set engine"),
        ({"engine": "transformers", "model": HUB}, "image: is required by engine transformers"),
        ({"engine": "simulated"}, "image: is required by engine simulated"),
        (
            {"engine": "vllm", "model": "path:/m", "docker": {"volumes": {"/x": "/m/:ro"}}},
            "docker.volumes: /x would hide the model",
        ),
    ],
)
def test_what_could_not_run_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match="^" + words):
        validate(spec(**fields))


def test_auto_takes_engines_that_have_an_image() -> None:
    in_container = spec(model=HUB)
    validate(in_container)
    facts = facts_to_json(LLAMA)
    engines = {name for name, _ in engine_for(in_container).need(in_container, facts).by_engine}
    assert engines == {"vllm", "sglang"}
    as_process = DeploymentSpec(model=HUB)
    assert "transformers" in {name for name, _ in engine_for(as_process).need(as_process, facts).by_engine}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("a", f"a@{DIGEST}"),
        ("a/b:tag", f"a/b@{DIGEST}"),
        ("localhost:5000/a/b", f"localhost:5000/a/b@{DIGEST}"),
        ("localhost:5000/a/b:1", f"localhost:5000/a/b@{DIGEST}"),
        (f"a/b:1@sha256:{'1' * 64}", f"a/b:1@sha256:{'1' * 64}"),
    ],
)
def test_the_digest_takes_the_place_of_the_tag(image: str, expected: str) -> None:
    assert pinned(image, {short_repository(image): DIGEST}, of_settings=True) == expected


@pytest.mark.parametrize(
    ("image", "digests", "of_settings", "is_pinned"),
    [
        ("a/b:1", {}, True, False),
        ("a/b:1", {"a/b": DIGEST}, True, True),
        ("docker.io/a/b:2", {"a/b": DIGEST}, True, True),
        ("index.docker.io/library/b", {"b": DIGEST}, False, True),
        ("mirror:5000/a/b:1", {"a/b": DIGEST}, True, False),
        ("mirror:5000/a/b:1", {"a/b": "sha256:0", "mirror:5000/a/b": DIGEST}, True, True),
        ("a/b:1", {"": DIGEST}, True, False),  # kept by an earlier version, perhaps of another repository
        ("a/b:1", {"": DIGEST, "a/b": "sha256:0"}, False, True),  # which the image of a spec cannot be
    ],
)
def test_a_digest_counts_for_its_repository_alone(
    image: str, digests: dict[str, str], of_settings: bool, is_pinned: bool
) -> None:
    expected = f"{repository_of(image)}@{DIGEST}" if is_pinned else image
    assert pinned(image, digests, of_settings=of_settings) == expected


def test_the_settings_name_images_by_engine() -> None:
    given = ControllerSettings.model_validate({"engine_images": "vllm=reg:5000/vllm:1, llama-cpp-cpu=reg/llama"})
    assert given.engine_images == {"vllm": "reg:5000/vllm:1", "llama-cpp-cpu": "reg/llama"}
    for wrong in ("vllm", "warp=a/b", "vllm=A B", "transformers=a"):
        with pytest.raises(ValueError, match="engine_images"):
            ControllerSettings.model_validate({"engine_images": wrong})
