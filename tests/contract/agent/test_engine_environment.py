"""An agent in an image: what its engines get of the image's variables, and of the agent's token of the hub."""

from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from schemas.wire import ModelFetch
from support.processes.agents import running_agent
from support.standins.controller import ControllerDouble, start_order
from support.standins.download_hub import DownloadHub, running_download_hub

# It serves only with what its image has set for it.
NEEDS_ITS_IMAGE = """
import ctypes, os, sys, time
wanted = {"LD_LIBRARY_PATH": "/image/lib", "VLLM_CACHE_ROOT": "/image/cache", "NVIDIA_DRIVER_CAPABILITIES": "compute",
          "SSL_CERT_FILE": "/image/ca.pem", "IMAGE_PLUGINS": "/image/plugins"}
lacking = [name for name, value in wanted.items() if os.environ.get(name) != value]
if lacking:
    sys.exit("the image's variables are missing: " + " ".join(lacking))
time.sleep(1000)
"""
# Like a server, it asks the hub about the model first, unless its environment keeps it from that.
LOADS = """
import os, time
from huggingface_hub import HfApi, constants, snapshot_download
if not constants.HF_HUB_OFFLINE:
    HfApi().auth_check("org/model")
print(sorted(os.listdir(snapshot_download("org/model", local_files_only=True))), flush=True)
time.sleep(1000)
"""
OF_THE_IMAGE = {
    "LD_LIBRARY_PATH": "/image/lib",
    "VLLM_CACHE_ROOT": "/image/cache",
    "NVIDIA_DRIVER_CAPABILITIES": "compute",
    "SSL_CERT_FILE": "/image/ca.pem",
    "IMAGE_PLUGINS": "/image/plugins",
}
SECRETS = {"AWS_SECRET_ACCESS_KEY": "hunter2", "GPUWARD_JOIN_TOKEN": "hunter3", "VLLM_API_KEY": "hunter4"}
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights"}


async def test_an_engine_gets_its_images_variables_and_no_secret_of_the_agent(
    controller: ControllerDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (OF_THE_IMAGE | SECRETS).items():
        monkeypatch.setenv(name, value)
    order = start_order("{python}", "-c", NEEDS_ITS_IMAGE)
    with capture_logs() as logged:
        async with running_agent(controller, tmp_path, engine_environment=("IMAGE_*",)):
            await controller.start_order("i-1", order)
            running = await controller.state("i-1", "running")
            env = psutil.Process(running.pid).environ()
    assert OF_THE_IMAGE.items() <= env.items()
    assert not env.keys() & SECRETS.keys()
    assert not [value for value in env.values() if "hunter" in value]
    named = [str(line) for line in logged if "VLLM_API_KEY" in str(line)]
    assert len(named) == 1, "what it holds back is logged once"
    assert "AWS_SECRET_ACCESS_KEY" in named[0]
    assert "hunter" not in str(logged)


async def test_what_is_not_listed_is_missed_and_named(
    controller: ControllerDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OF_THE_IMAGE.items():
        monkeypatch.setenv(name, value)
    with capture_logs() as logged:
        async with running_agent(controller, tmp_path):
            await controller.start_order("i-1", start_order("{python}", "-c", NEEDS_ITS_IMAGE))
            ended = await controller.state("i-1", "exited")
    assert ended.message == "the image's variables are missing: IMAGE_PLUGINS"
    assert [line for line in logged if "IMAGE_PLUGINS" in str(line) and "GPUWARD_AGENT_ENGINE_ENVIRONMENT" in str(line)]


@pytest.mark.parametrize("gated", [True, False])
async def test_a_gated_model_that_the_agents_token_fetched_still_loads(
    controller: ControllerDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, gated: bool
) -> None:
    tokens = {"org/model": {"good"}} if gated else {}
    with running_download_hub(DownloadHub({"org/model": FILES}, tokens=tokens)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "good")
        fetches = (ModelFetch(repo="org/model"),)
        order = replace(start_order("{python}", "-c", LOADS), fetches=fetches)
        async with running_agent(controller, tmp_path) as agent:
            await controller.start_order("i-1", order)
            running = await controller.state("i-1", "running")
            env = psutil.Process(running.pid).environ()
            log = agent.settings.data_dir / "instances/i-1/logs/1-0.log"
            await controller.until(lambda: "]" in log.read_text())
    assert "good" not in env.values()
    assert log.read_text().splitlines()[-1] == "['config.json', 'model.safetensors']"


async def test_a_deployments_own_token_stays_its_own(
    controller: ControllerDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_download_hub(DownloadHub({"org/model": FILES}, tokens={"org/model": {"good"}})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "the-hosts")
        fetches = (ModelFetch(repo="org/model"),)
        order = replace(start_order("sleep", "1000", env={"HF_TOKEN": "good"}), fetches=fetches)
        async with running_agent(controller, tmp_path):
            await controller.start_order("i-1", order)
            running = await controller.state("i-1", "running")
            env = psutil.Process(running.pid).environ()
    assert env["HF_TOKEN"] == "good"
    assert "HF_HUB_OFFLINE" not in env, "it may ask the hub for more"
