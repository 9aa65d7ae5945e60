"""The request to create a container, and the meaning of its messages."""

import dataclasses
from pathlib import PurePath

import pytest
from msgspec.structs import replace

from agent.containers.image_pull import PulledLayers
from agent.decide.containers import (
    Place,
    container_argv,
    container_name,
    create_config,
    digest_of,
    engines_network,
    exit_code,
    has_bridges,
    has_tag,
    key_of,
    labels,
    lacks_init,
    network_config,
    pull_error,
    registry_of,
    start_error,
    visible_gpus,
)
from agent.decide.doctor.gpus import DockerProbe, docker_runtime
from agent.state.process_records import ProcessKey
from schemas.exit_causes import cause_of_failed_start
from schemas.image_names import repository_of
from schemas.wire import ContainerOrder
from support.standins.controller import start_order

EVERYWHERE = "0.0.0.0"  # noqa: S104 - within a container
KEY = ProcessKey("demo-1", 3, 1)
PLACE = Place(
    owner="a" * 32, image="sha256:1f", user="1000:1000", groups=("44",), work=PurePath("/data/work"), port=18001,
    network="n1", env={"B": "2", "A": "1"}, read=("/cache/models--a--b",),
)  # fmt: skip
SERVE = ("vllm", "serve", "--host", "{host}", "--port", "{port}")


def order_with(*argv: str, container: dict[str, object] | None = None, **fields: object):
    order = start_order(*(argv or SERVE), port=True, **fields)
    return replace(order, container=ContainerOrder(image="a/b:1", **(container or {})))


def test_a_container_has_no_privileges_and_its_limits() -> None:
    order = replace(order_with(container={"shm_size_mib": 8}), host_memory_mib=64)
    config = create_config(order, KEY, PLACE)
    host = config["HostConfig"]
    assert config["Entrypoint"] == ["vllm", "serve", "--host", EVERYWHERE, "--port", "18001"]
    assert (config["Cmd"], config["User"], config["Env"]) == ([], "1000:1000", ["A=1", "B=2"])
    assert (host["Privileged"], host["CapDrop"], host["SecurityOpt"]) == (False, ["ALL"], ["no-new-privileges"])
    assert host["Memory"] == host["MemorySwap"] == 64 * 2**20
    assert (host["ShmSize"], host["GroupAdd"]) == (8 * 2**20, ["44"])
    assert host["PidsLimit"] > 0
    assert host["PortBindings"] == {"18001/tcp": [{"HostIp": "127.0.0.1", "HostPort": "18001"}]}
    assert "DeviceRequests" not in host
    assert (config["ExposedPorts"], config["Labels"]) == ({"18001/tcp": {}}, labels("a" * 32, KEY))
    assert (config["Image"], config["WorkingDir"], config["StopSignal"]) == ("sha256:1f", "/data/work", "SIGTERM")
    assert (host["NetworkMode"], host["Init"], host["PidsLimit"]) == ("n1", True, 32_768)
    assert host["RestartPolicy"] == {"Name": "no"}


@pytest.mark.parametrize(
    ("fields", "mode"), [({"network": None}, "host"), ({"port": None}, "n1"), ({"network": None, "port": None}, "host")]
)
def test_without_a_network_or_a_port_nothing_is_published(fields: dict[str, None], mode: str) -> None:
    config = create_config(order_with("run"), KEY, dataclasses.replace(PLACE, **fields))
    host = config["HostConfig"]
    assert (config["ExposedPorts"], host["PortBindings"], host["NetworkMode"]) == ({}, {}, mode)
    assert not {"Memory", "MemorySwap", "ShmSize"} & set(host)


def test_an_order_without_a_container_is_refused() -> None:
    with pytest.raises(ValueError, match="no container"):
        create_config(replace(order_with(), container=None), KEY, PLACE)


def test_without_a_port_its_placeholder_stays() -> None:
    assert container_argv(order_with(), None, bridge=True)[-1] == "{port}"


def test_gpus_are_asked_for_by_uuid() -> None:
    config = create_config(order_with(gpus=("GPU-b", "GPU-a")), KEY, PLACE)
    assert config["HostConfig"]["DeviceRequests"] == [
        {"Driver": "nvidia", "DeviceIDs": ["GPU-b", "GPU-a"], "Capabilities": [["gpu"]]}
    ]


def test_folders_are_mounted_as_ordered() -> None:
    container = {"models": ("/m",), "volumes": {"/data": "/d", "/ro": "/r:ro"}}
    mounts = create_config(order_with(container=container), KEY, PLACE)["HostConfig"]["Mounts"]
    assert [(one["Source"], one["Target"], one["ReadOnly"]) for one in mounts] == [
        ("/data/work", "/data/work", False),
        ("/cache/models--a--b", "/cache/models--a--b", True),
        ("/m", "/m", True),
        ("/data", "/d", False),
        ("/ro", "/r", True),
    ]


def test_on_the_hosts_network_it_listens_on_loopback() -> None:
    order = order_with()
    assert container_argv(order, 1, bridge=False) == ["vllm", "serve", "--host", "127.0.0.1", "--port", "1"]
    assert container_argv(order_with("{simulated_engine}", "--port", "{port}"), 1, bridge=True) == [
        "python3", "-P", "-m", "agent.simulated_engine", "--host", EVERYWHERE, "--port", "1"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("by_index", "indexes", "seen"),
    [
        (False, {"GPU-b": 5, "GPU-a": 2}, {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}),
        (True, {"GPU-b": 5, "GPU-a": 2}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,0"}),
        (True, {"GPU-b": 5}, {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}),
    ],
)
def test_indexes_count_within_the_container(by_index, indexes, seen) -> None:
    order = replace(order_with(gpus=("GPU-b", "GPU-a")), gpus_by_index=by_index)
    assert visible_gpus(order, indexes.get) == seen


def test_without_a_claim_no_gpu_is_seen() -> None:
    assert visible_gpus(order_with(gpus=()), {}.get) == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}


def test_labels_name_the_process() -> None:
    assert key_of(labels("o", KEY)) == KEY
    assert key_of({"gpuward.instance": "demo-1"}) is None
    assert key_of({**labels("o", KEY), "gpuward.epoch": "x"}) is None
    assert container_name("0123456789abcdef", KEY) == "gpuward-0123456789ab-demo-1-3-1"


@pytest.mark.parametrize(
    ("docker", "ours"),
    [
        (0, 0),
        (1, 1),
        (127, 127),
        (128, 128),
        (129, -1),
        (137, -9),
        (139, -11),
        (143, -15),
        (192, -64),
        (193, 193),
        (255, 255),
    ],
)
def test_exit_codes_are_as_of_processes(docker, ours) -> None:
    assert exit_code(docker) == ours


@pytest.mark.parametrize(
    ("reference", "repository", "registry", "tagged"),
    [
        ("vllm/vllm-openai", "vllm/vllm-openai", "docker.io", False),
        ("vllm/vllm-openai:v0.33.0", "vllm/vllm-openai", "docker.io", True),
        ("python", "python", "docker.io", False),
        ("python:3.12", "python", "docker.io", True),
        ("index.docker.io/a/b:1", "index.docker.io/a/b", "docker.io", True),
        ("ghcr.io/a/b@sha256:1f", "ghcr.io/a/b", "ghcr.io", True),
        ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b", "127.0.0.1:5000", False),
        ("localhost/a:1@sha256:1f", "localhost/a", "localhost", True),
    ],
)
def test_references_are_taken_apart(reference, repository, registry, tagged) -> None:
    assert (repository_of(reference), registry_of(reference), has_tag(reference)) == (repository, registry, tagged)


def test_the_digest_is_of_the_repository_that_was_asked() -> None:
    digests = ["mirror/python@sha256:aa", "python@sha256:bb"]
    assert digest_of("docker.io/library/python:3", digests) == "sha256:bb"
    assert digest_of("mirror/python:3", digests) == "sha256:aa"
    assert digest_of("other/python:3", digests) is None
    assert digest_of("python", []) is None
    assert digest_of("python", ["python"]) is None


def test_of_several_digests_the_one_that_was_asked_counts() -> None:
    digests = ["a/b@sha256:aa", "a/b@sha256:bb"]
    assert digest_of("a/b@sha256:bb", digests) == "sha256:bb"
    assert digest_of("a/b:1", digests) == "sha256:aa"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ('failed to resolve reference "docker.io/a/b:1": docker.io/a/b:1: not found', "image_not_found"),
        ("manifest for a/b:1 not found: manifest unknown: manifest unknown", "image_not_found"),
        ("pull access denied for a/b, repository does not exist or may require 'docker login'", "image_not_found"),
        ("Get https://registry-1.docker.io/v2/: dial tcp: connect: connection refused", "image_pull_failed"),
        ("write /var/lib/docker/tmp/x: no space left on device", "image_pull_failed"),
        ("toomanyrequests: You have reached your pull rate limit", "image_pull_failed"),
        (
            "Get https://r.example/v2/: dial tcp: lookup r.example: server misbehaving: host not found",
            "image_pull_failed",
        ),
    ],
)
def test_docker_says_why_an_image_cannot_be_had(message, code) -> None:
    assert cause_of_failed_start(pull_error("a/b:1", message)) == code


def test_docker_says_why_a_container_does_not_start() -> None:
    driver = 'could not select device driver "nvidia" with capabilities: [[gpu]]'
    assert cause_of_failed_start(start_error("vllm", "a/b", driver)) == "runtime_unsupported"
    assert "nvidia-ctk" in start_error("vllm", "a/b", driver)
    missing = 'OCI runtime create failed: exec: "vllm": executable file not found in $PATH: unknown'
    assert "has no program 'vllm'" in start_error("vllm", "a/b", missing)
    absent = 'exec: "vllm": stat vllm: no such file or directory'
    assert "has no program 'vllm'" in start_error("vllm", "a/b", absent)
    for other in ("no such file or directory: /etc/resolv.conf", 'exec: "vllm": permission denied'):
        assert start_error("vllm", "a/b", other) == f"Docker cannot start the container: {other}"
    folder = 'invalid mount config for type "bind": bind source path does not exist: /nowhere'
    assert start_error("vllm", "a/b", folder).endswith("/nowhere")


def test_a_pull_counts_the_bytes_of_its_layers() -> None:
    layers = PulledLayers()
    assert layers.take({"status": "Pulling fs layer", "id": "l1"})
    assert layers.take({"status": "Downloading", "id": "l1", "progressDetail": {"current": 10, "total": 100}})
    assert layers.take({"status": "Downloading", "id": "l2", "progressDetail": {"current": 5, "total": 50}})
    assert (layers.downloaded, layers.total) == (15, 150)
    layers.take({"status": "Download complete", "id": "l2"})
    assert (layers.downloaded, layers.total) == (60, 150)
    assert not layers.take({"status": "Retrying in 5 seconds", "id": "l1"})
    assert not layers.take({"status": "Waiting", "id": "l3"})


@pytest.mark.parametrize(
    ("facts", "usable", "gpus", "says"),
    [
        (DockerProbe(), False, False, "no Docker engine"),
        (DockerProbe("denied"), False, False, "group docker"),
        (DockerProbe("silent", error="x"), False, False, "restart Docker"),
        (DockerProbe("running", "28"), True, False, "nvidia-container-toolkit"),
        (DockerProbe("running", "28", runtimes=("nvidia",)), True, True, ""),
    ],
)
def test_the_controller_is_told_what_the_host_can_run(facts, usable, gpus, says) -> None:
    told = docker_runtime(facts)
    assert (told.usable, told.gpus) == (usable, gpus)
    assert says in told.reason


def network(**fields: object) -> dict[str, object]:
    return {"Id": "n1", "Driver": "bridge", **network_config("a" * 32), **fields}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], None),
        ([{"Name": "bridge", "Id": "n0", "Driver": "bridge", "Labels": {}, "Options": {}}], None),
        ([network()], "n1"),
        ([network(Name="renamed")], "n1"),
        ([network(Id="n2"), network(Id="n1")], "n1"),
        ([network(Labels=None)], None),
        ([network(Labels={"gpuward.network": "other"})], None),
        ([network(Options={"com.docker.network.bridge.enable_icc": "true"})], None),
        ([network(Driver="macvlan")], None),
    ],
)
def test_the_network_of_engines_is_found_by_its_label_and_separates_them(found, expected) -> None:
    assert engines_network(found) == expected


@pytest.mark.parametrize(
    ("taken", "name"), [((), ""), (("other",), ""), (("",), "-2"), (("", "-2"), "-3"), (("-2",), "")]
)
def test_a_network_gets_a_free_name(taken: tuple[str, ...], name: str) -> None:
    own = "gpuward-0123456789ab"
    config = network_config("0123456789abcdef", [f"{own}{one}" if one != "other" else one for one in taken])
    assert (config["Name"], config["CheckDuplicate"]) == (f"{own}{name}", True)


@pytest.mark.parametrize(
    ("names", "expected"), [([], False), (["host", "none"], False), (["bridge"], True), (["host", "bridge"], True)]
)
def test_a_docker_without_its_bridge_has_no_bridges(names: list[str], expected: bool) -> None:
    assert has_bridges([{"Name": name} for name in names]) is expected


def test_a_docker_without_its_init_is_recognised() -> None:
    assert lacks_init('exec: "docker-init": executable file not found in $PATH')
    assert not lacks_init('exec: "vllm": executable file not found in $PATH')
