"""What an agent passes on of its own environment to engines, and what it holds back."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent.decide.engine_environment import SETTING, format_names, held_back, passed_on
from agent.doctor.host_probes import probe_environment
from agent.settings import AgentSettings
from schemas.engine_variables import OF_ANY

NEEDED = """
PATH HOME USER LOGNAME SHELL TMPDIR LANG LC_ALL LC_CTYPE TZ LD_LIBRARY_PATH PYTHONPATH VIRTUAL_ENV CONDA_PREFIX
CONDA_DEFAULT_ENV XDG_CACHE_HOME HTTP_PROXY https_proxy all_proxy NO_PROXY no_proxy SSL_CERT_FILE SSL_CERT_DIR
REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HF_HOME HF_ENDPOINT HF_HUB_CACHE HF_HUB_DISABLE_IMPLICIT_TOKEN
CUDA_HOME CUDA_MPS_PIPE_DIRECTORY CUDA_CACHE_PATH NCCL_NET_PLUGIN NCCL_IB_PKEY NVIDIA_VISIBLE_DEVICES ROCM_PATH
HSA_OVERRIDE_GFX_VERSION HIP_VISIBLE_DEVICES TORCH_CUDA_ARCH_LIST PYTORCH_CUDA_ALLOC_CONF TORCHINDUCTOR_CACHE_DIR
TRITON_CACHE_DIR OMP_NUM_THREADS TOKENIZERS_PARALLELISM VLLM_CACHE_ROOT
SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK
"""
# What official images set and the servers in them read.
OF_IMAGES = {
    "vllm": "PATH LD_LIBRARY_PATH CUDA_VERSION NVIDIA_REQUIRE_CUDA NVIDIA_DRIVER_CAPABILITIES NV_CUDA_LIB_VERSION"
    " TORCH_CUDA_ARCH_LIST HF_XET_HIGH_PERFORMANCE VLLM_USAGE_SOURCE VLLM_ENABLE_CUDA_COMPATIBILITY",
    "sglang": "PATH LD_LIBRARY_PATH CUDA_HOME NVIDIA_VISIBLE_DEVICES TRITON_PTXAS_PATH SGLANG_SET_CPU_AFFINITY",
    "llama.cpp": "LLAMA_ARG_HOST LD_LIBRARY_PATH CUDA_VERSION",
    "rocm": "ROCM_PATH PYTORCH_ROCM_ARCH HIP_FORCE_DEV_KERNARG HSA_NO_SCRATCH_RECLAIM VLLM_ROCM_USE_AITER",
}
HELD = """
AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN OPENAI_API_KEY DOCKER_AUTH_CONFIG PGPASSWORD KUBECONFIG
SSH_AUTH_SOCK DBUS_SESSION_BUS_ADDRESS NOTIFY_SOCKET CREDENTIALS_DIRECTORY DATABASE_URL
LESSOPEN PIP_INDEX_URL COVERAGE_PROCESS_START OMPI_MCA_btl LD_PRELOAD PYTHONSTARTUP BASH_ENV
HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH VLLM_API_KEY LLAMA_API_KEY NVIDIA_API_KEY CONDA_TOKEN HF_PASSWORD
SGLANG_ADMIN_API_KEY VLLM_SECRET_SEED cuda_home
"""


@pytest.mark.parametrize("name", " ".join((NEEDED, *OF_IMAGES.values())).split())
def test_what_an_engine_may_need_passes(name: str) -> None:
    assert passed_on({name: "v"}) == {name: "v"}


def test_all_of_the_engines_tables_passes_but_tokens() -> None:
    assert held_back(dict.fromkeys(OF_ANY, "v")) == ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


@pytest.mark.parametrize("name", HELD.split())
def test_credentials_and_what_no_list_has_are_held_back(name: str) -> None:
    assert passed_on({name: "v"}) == {}
    assert held_back({name: "v", "PATH": "/bin"}) == (name,)
    assert passed_on({name: "v"}, [name]) == {name: "v"}, "the host's administrator may name it"


def test_a_prefix_passes_no_credential() -> None:
    env = {"OMPI_MCA_btl": "tcp", "OMPI_API_KEY": "secret", "AWS_REGION": "eu"}
    assert passed_on(env, ["OMPI_*"]) == {"OMPI_MCA_btl": "tcp"}
    assert held_back(env, ["*"]) == ("OMPI_API_KEY",)


@given(env=st.dictionaries(st.text(min_size=1, max_size=40), st.text(max_size=5), max_size=20))
@pytest.mark.parametrize("name", ["GPUWARD_JOIN_TOKEN", "GPUWARD_AGENT_NAME", "gpuward_join_token"])
def test_gpuwards_own_never_pass(name: str, env: dict[str, str]) -> None:
    env |= {name: "secret"}
    for listed in ([], ["*"], ["G*", "gpuward_join_token"], [name]):
        passed = passed_on(env, listed)
        assert not [one for one in passed if one.upper().startswith("GPUWARD_")]
        assert passed.keys().isdisjoint(held_back(env, listed))
        assert all(env[one] == value for one, value in passed.items())


def test_names_are_shown_within_bounds() -> None:
    names = held_back({f"X{'y' * 1000}\n\udcff{number}": "v" for number in range(5000)})
    words = format_names(names)
    assert len(words) < 20_000
    assert words.isascii()
    assert words.isprintable()
    assert words.endswith("and 4900 more")


def settings(monkeypatch: pytest.MonkeyPatch, value: str) -> AgentSettings:
    monkeypatch.setenv(SETTING, value)
    return AgentSettings(controller_url="http://127.0.0.1:1")


def test_the_setting_is_a_list_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings(monkeypatch, "LD_PRELOAD, OMPI_*,").engine_environment == ("LD_PRELOAD", "OMPI_*")
    for wrong in ("A B", "A=1", "*_KEY", "GPUWARD_*", "gpuward_join_token", "1A"):
        with pytest.raises(ValidationError, match="engine_environment"):
            settings(monkeypatch, wrong)


def test_doctor_reads_the_running_agents_environment(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "AWS_SECRET_ACCESS_KEY": "secret", "IMAGE_DIR": "/opt", SETTING: "IMAGE_DIR"}
    ready = tmp_path / "ready"
    with subprocess.Popen(["sh", "-c", f"touch {ready}; read x"], env=env, stdin=subprocess.PIPE) as agent:
        while not ready.exists():
            assert agent.poll() is None
        facts = probe_environment(agent.pid, {"OTHER": "v"}, ())
        assert agent.stdin is not None
        agent.stdin.close()
    assert (facts.held_back, facts.running, facts.readable) == (("AWS_SECRET_ACCESS_KEY",), True, True)
    assert probe_environment(None, {"OTHER": "v"}, ()).held_back == ("OTHER",)
