"""Which variables an operator may set: those that a list names, never one that an earlier version asked a grant for."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from controller.domain.access.grants import Grant
from controller.engines.arguments.environment import reserved
from controller.engines.arguments.privileges import OPTIONS, nearest, next_change_needs, powers, versions
from schemas.engine_variables import variables_of
from schemas.manifest.deployment import DeploymentSpec
from support.builders.engine_specs import spec

ROOT = Path(__file__).parents[3]
# What asked for the grant `environment` before there was a list of harmless ones. It stays as it was then.
FREE: Final = {"PYTHONUNBUFFERED", "PYTHONHASHSEED"}
PREFIXES: Final = (
    "LD_", "DYLD_", "PYTHON", "BASH_", "GIT_", "TRITON_", "NVCC_", "CUDA_INJECTION", "OPENSSL_", "RAY_", "XDG_",
)  # fmt: skip
SUFFIXES: Final = (
    "_PATH", "_DIR", "_DIRECTORY", "_ROOT", "_HOME", "_FILE", "_FOLDER", "_CONFIG_FILE", "_LIBRARY", "_LIB",
    "_FILENAMES", "_FILES", "_LOGDEST_DBG", "_LOGS_OUT", "_TRACE", "_PLUGIN", "_PLUGINS", "FLAGS", "NVCC", "_COMPILER",
    "_LAUNCHER", "_CMD", "_COMMAND",
)  # fmt: skip
NAMES: Final = (
    "NODE_OPTIONS", "PERL5OPT", "PERL5LIB", "PERL5DB", "RUBYOPT",
    "RUBYLIB", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS",
    "CLASSPATH", "ENV", "SHELLOPTS", "ZDOTDIR", "PROMPT_COMMAND",
    "VLLM_PLUGINS", "SGLANG_PLUGINS", "SGLANG_EXTERNAL_MODEL_PACKAGE",
    "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE", "GCONV_PATH", "LOCPATH", "OMP_TOOL_LIBRARIES",
    "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN",
    "INTEL_LIBITTNOTIFY64", "TVM_LIBRARY_PATH", "GLIBC_TUNABLES", "PATH", "SHELL",
    "CC", "CXX", "CUDACXX", "CUDAHOSTCXX", "CUDA_PATH", "EDITOR",
    "PAGER", "BROWSER", "TORCHINDUCTOR_COMPILE_THREADS_CMD", "DG_JIT_NVCC_COMPILER",
    "SSH_ASKPASS", "CPATH", "GCC_EXEC_PREFIX", "CCACHE_PREFIX", "CMAKE_ARGS",
    "HF_ENDPOINT", "HF_INFERENCE_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY",
    "ALL_PROXY", "S3_ENDPOINT_URL", "AWS_ENDPOINT_URL", "VLLM_USE_MODELSCOPE",
    "SGLANG_USE_MODELSCOPE", "HOSTALIASES", "LOCALDOMAIN", "RES_OPTIONS",
    "VLLM_HOST_IP", "MODELSCOPE_DOMAIN", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD",
    "VLLM_ALLOW_INSECURE_SERIALIZATION", "VLLM_SERVER_DEV_MODE",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "SGLANG_USE_PICKLE_IPC", "HOME", "TMPDIR",
    "TEMP", "TMP", "HF_HUB_CACHE", "HF_ASSETS_CACHE", "HF_MODULES_CACHE",
    "HF_XET_CACHE", "HUGGINGFACE_HUB_CACHE", "HUGGINGFACE_ASSETS_CACHE",
    "TRANSFORMERS_CACHE", "VLLM_ASSETS_CACHE", "VLLM_MEDIA_CACHE", "NETRC",
    "SSLKEYLOGFILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "KUBECONFIG",
    "GOOGLE_APPLICATION_CREDENTIALS", "BOTO_CONFIG", "MALLOC_TRACE",
    "FLASHINFER_WORKSPACE_BASE",
)  # fmt: skip
ENGINES: Final = (*OPTIONS, "auto", "simulated")


def needed(engine: str, name: str) -> list[Grant]:
    wanted = DeploymentSpec.model_validate(
        {"engine": engine, "env": {name: "1"}} | ({} if engine == "simulated" else {"model": "hf:org/name"})
    )
    return [power.grant for power in powers(wanted)]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_needed_a_grant_before_needs_it_now(engine: str) -> None:
    once = [*NAMES, *(f"{one}X" for one in PREFIXES), *(f"X{one}" for one in SUFFIXES), *(f"VLLM{s}" for s in SUFFIXES)]
    once += [name.lower() for name in once]
    assert [name for name in once if needed(engine, name) != [Grant.ENVIRONMENT]] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_no_listed_name_is_one_that_needed_a_grant_or_was_refused(engine: str) -> None:
    listed = variables_of(engine).keys() - FREE
    assert [one for one in listed if one in NAMES or one.startswith(PREFIXES) or one.endswith(SUFFIXES)] == []
    assert [one for one in listed if reserved(one)] == []


@pytest.mark.parametrize(
    "name",
    ["LESSOPEN", "PIP_INDEX_URL", "COVERAGE_PROCESS_START", "OMPI_MCA_btl", "VLLM_LOGGING_STREAM", "TORCH_LOGS",
     "A_NAME_OF_NEXT_YEAR", "omp_num_threads", "SGLANG_HTTP_SERVER_APP_PATH", "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"],
)  # fmt: skip
@pytest.mark.parametrize("engine", ENGINES)
def test_a_name_that_no_list_has_needs_a_grant(engine: str, name: str) -> None:
    assert needed(engine, name) == [Grant.ENVIRONMENT]


def test_lists_are_of_their_engine() -> None:
    assert needed("vllm", "VLLM_LOGGING_LEVEL") == needed("auto", "VLLM_LOGGING_LEVEL") == []
    assert needed("sglang", "VLLM_LOGGING_LEVEL") == [Grant.ENVIRONMENT]
    assert needed("sglang", "SGLANG_LOG_MS") == needed("llama-cpp", "GGML_CUDA_NO_PINNED") == []


def test_a_command_needs_the_grant_command_alone() -> None:
    own = DeploymentSpec.model_validate({"command": ["run", "{port}"], "env": {"LD_PRELOAD": "/x.so", "A": "b"}})
    assert [power.grant for power in powers(own)] == [Grant.COMMAND]


@pytest.mark.parametrize(
    ("engine", "fields", "needs"),
    [
        ("vllm", {"args": {"a-flag-of-next-year": 1}}, True),
        ("vllm", {"args": {"a_flag_of_next_year.x": 1}}, True),
        ("vllm", {"args": {"max-num-seqs": 1, "no-enable-prefix-caching": True, "tp": None}}, False),
        ("vllm", {"args": {"a-flag-of-next-year": None}}, False),
        ("sglang", {"args": {"a-flag-of-next-year": "x"}}, True),
        ("transformers", {"args": {"a-flag-of-next-year": "x"}}, True),
        ("transformers", {"args": {"torch-dtype": "float16"}}, False),
        ("auto", {"args": {"max-model-len": 8192}}, False),
        ("auto", {"args": {"a-flag-of-next-year": "x"}}, True),
        # On a host any version may be installed; an image has the one of its tag.
        ("llama-cpp", {"args": {"no-mmap": True}}, False),
        ("llama-cpp", {"args": {"agent": True}}, True),
        ("llama-cpp", {"runtime": "docker", "args": {"no-mmap": True}}, False),
        ("llama-cpp", {"runtime": "docker", "args": {"log-jsonl": True}}, True),
    ],
)
def test_a_flag_that_the_server_was_not_known_to_have_needs_code(
    engine: str, fields: dict[str, Any], needs: bool
) -> None:
    assert [power.grant for power in powers(spec(engine, **fields))] == ([Grant.CODE] if needs else [])


def test_a_version_without_a_table_uses_the_nearest_one() -> None:
    known = ("0.11.2", "0.33.0")
    found = [nearest(known, one) for one in ("0.1", "0.11.0", "0.20.1", "0.28.0", "0.40", "1.0")]
    assert found == ["0.11.2", "0.11.2", "0.11.2", "0.33.0", "0.33.0", "0.33.0"]
    assert nearest(("9660", "11434"), "9700") == "9660"
    assert all(versions(engine) for engine in OPTIONS)


def manifests() -> list[tuple[str, dict[str, Any]]]:
    """All deployments that the pages, README and the examples show, and those that the product writes itself."""
    found = []
    for page in [*ROOT.glob("docs/*.md"), ROOT / "README.md"]:
        for block in re.findall(r"```ya?ml[^\n]*\n(.*?)```", page.read_text(), re.DOTALL):
            found += [(page.name, block)]
    found += [(str(path), path.read_text()) for path in ROOT.glob("docs/*.yaml")]
    return [
        (name, one)
        for name, text in found
        for one in yaml.safe_load_all(text)
        if isinstance(one, dict) and ("args" in one or "env" in one)
    ]


def test_what_the_pages_show_needs_no_grant_that_it_did_not_need_before() -> None:
    shown = manifests()
    assert len(shown) >= 3
    wrong = []
    for page, one in shown:
        fields = {key: value for key, value in one.items() if key in ("args", "env", "engine", "model", "runtime")}
        whole = {"model": "hf:org/name", **fields}
        if whole.get("engine") in ("custom", "simulated"):
            continue
        wrong += [(page, needs)] if (needs := next_change_needs(DeploymentSpec.model_validate(whole), ())) else []
    assert wrong == []
