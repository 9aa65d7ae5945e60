"""Variables of an engine's environment that Gpuward sets itself, and those that need a grant, with the reasons."""

from collections.abc import Mapping
from typing import Final

from schemas.engine_variables import variables_of

_LIBRARIES: Final = "loads libraries into the process"
_CODE: Final = "loads code into the process"
_PROGRAMS: Final = "chooses programs that the process runs"
_ELSEWHERE: Final = "sends the process, and the tokens that it holds, to another server"
_FILES: Final = "names a file or folder of the host"
_PICKLES: Final = "lets the process run code from files or messages"

# Variables that no deployment may set, with the fix. The manifest itself refuses CUDA_VISIBLE_DEVICES.
_DEVICES: Final = "chooses GPUs, which is the placement's; remove it"
_DEGREES: Final = "sets parallel degrees; set parallel instead"
_PORTS: Final = "chooses ports, which is the agent's; remove it"
_KEYS: Final = "sets a key, and the gateway sends none on: it checks keys itself; remove it"
_RESERVED: Final = {
    "CUDA_DEVICE_ORDER": _DEVICES,
    "NVIDIA_VISIBLE_DEVICES": _DEVICES,
    "HIP_VISIBLE_DEVICES": _DEVICES,
    "ROCR_VISIBLE_DEVICES": _DEVICES,
    "GPU_DEVICE_ORDINAL": _DEVICES,
    "ZE_AFFINITY_MASK": _DEVICES,
    "MTMD_BACKEND_DEVICE": _DEVICES,
    "VLLM_RAY_PER_WORKER_GPUS": _DEVICES,
    "SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS": _DEVICES,
    "VLLM_PP_LAYER_PARTITION": "spreads layers unevenly, which the estimate does not; remove it",
    "SGLANG_PP_LAYER_PARTITION": "spreads layers unevenly, which the estimate does not; remove it",
    "VLLM_PORT": _PORTS,
    "SGLANG_PORT": _PORTS,
    "SGLANG_GRPC_PORT": _PORTS,
    "LLAMA_API_KEY": _KEYS,
    "VLLM_API_KEY": _KEYS,
}
_RESERVED_PREFIXES: Final = {
    "LLAMA_ARG_": "sets a flag of llama-server; write the flag under args, where it is checked",
    "VLLM_DP_": _DEGREES,
    "VLLM_RAY_DP_": _DEGREES,
}

UNLISTED: Final = "is not listed as harmless"
# Variables that are not listed as harmless need the grant `environment`. The refusal names the known effect of these.
PREFIXES: Final[Mapping[str, str]] = {
    "LD_": _LIBRARIES,
    "DYLD_": _LIBRARIES,
    "PYTHON": _CODE,
    "BASH_": _CODE,
    "GIT_": _PROGRAMS,
    "TRITON_": _PROGRAMS,
    "NVCC_": _PROGRAMS,
    "CUDA_INJECTION": _LIBRARIES,
    "OPENSSL_": _LIBRARIES,
    "RAY_": _ELSEWHERE,
    "XDG_": _FILES,
}
NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("NODE_OPTIONS", "PERL5OPT", "PERL5LIB", "PERL5DB", "RUBYOPT", "RUBYLIB", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS",
         "JDK_JAVA_OPTIONS", "CLASSPATH", "ENV", "SHELLOPTS", "ZDOTDIR", "PROMPT_COMMAND", "VLLM_PLUGINS",
         "SGLANG_PLUGINS", "SGLANG_EXTERNAL_MODEL_PACKAGE", "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE"),
        _CODE,
    ),
    **dict.fromkeys(
        ("GCONV_PATH", "LOCPATH", "OMP_TOOL_LIBRARIES", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN",
         "NCCL_ENV_PLUGIN", "INTEL_LIBITTNOTIFY64", "TVM_LIBRARY_PATH", "GLIBC_TUNABLES"),
        _LIBRARIES,
    ),
    **dict.fromkeys(
        ("PATH", "SHELL", "CC", "CXX", "CUDACXX", "CUDAHOSTCXX", "CUDA_PATH", "EDITOR", "PAGER", "BROWSER",
         "TORCHINDUCTOR_COMPILE_THREADS_CMD", "DG_JIT_NVCC_COMPILER", "SSH_ASKPASS",
         "CPATH", "GCC_EXEC_PREFIX", "CCACHE_PREFIX", "CMAKE_ARGS"),
        _PROGRAMS,
    ),
    **dict.fromkeys(
        ("HF_ENDPOINT", "HF_INFERENCE_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "S3_ENDPOINT_URL",
         "AWS_ENDPOINT_URL", "VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE", "HOSTALIASES", "LOCALDOMAIN",
         "RES_OPTIONS", "VLLM_HOST_IP", "MODELSCOPE_DOMAIN"),
        _ELSEWHERE,
    ),
    **dict.fromkeys(
        ("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "VLLM_ALLOW_INSECURE_SERIALIZATION", "VLLM_SERVER_DEV_MODE",
         "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "SGLANG_USE_PICKLE_IPC"),
        _PICKLES,
    ),
    **dict.fromkeys(
        ("HOME", "TMPDIR", "TEMP", "TMP", "HF_HUB_CACHE", "HF_ASSETS_CACHE", "HF_MODULES_CACHE", "HF_XET_CACHE",
         "HUGGINGFACE_HUB_CACHE", "HUGGINGFACE_ASSETS_CACHE", "TRANSFORMERS_CACHE", "VLLM_ASSETS_CACHE",
         "VLLM_MEDIA_CACHE", "NETRC", "SSLKEYLOGFILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "KUBECONFIG",
         "GOOGLE_APPLICATION_CREDENTIALS", "BOTO_CONFIG", "MALLOC_TRACE", "FLASHINFER_WORKSPACE_BASE"),
        _FILES,
    ),
}  # fmt: skip
SUFFIXES: Final[Mapping[str, str]] = dict.fromkeys(
    ("_PATH", "_DIR", "_DIRECTORY", "_ROOT", "_HOME", "_FILE", "_FOLDER", "_CONFIG_FILE", "_LIBRARY", "_LIB",
     "_FILENAMES", "_FILES", "_LOGDEST_DBG", "_LOGS_OUT", "_TRACE"),
    _FILES,
) | dict.fromkeys(("_PLUGIN", "_PLUGINS"), _LIBRARIES) | dict.fromkeys(
    ("FLAGS", "NVCC", "_COMPILER", "_LAUNCHER", "_CMD", "_COMMAND"), _PROGRAMS
)  # fmt: skip


def reserved(name: str) -> str | None:
    """Why no deployment may set this variable, and the fix; None if it may."""
    why_prefix = next((why for prefix, why in _RESERVED_PREFIXES.items() if name.upper().startswith(prefix)), None)
    return _RESERVED.get(name.upper(), why_prefix)


def power_of(name: str, engine: str) -> str | None:
    """Why this variable needs a grant; None if it is listed as harmless. `engine`: a name, or `auto`."""
    if name in variables_of(engine):
        return None
    upper = name.upper()  # proxies are read in lower case too
    by_prefix = (why for prefix, why in PREFIXES.items() if upper.startswith(prefix))
    by_suffix = (why for suffix, why in SUFFIXES.items() if upper.endswith(suffix))
    return NAMES.get(upper) or next(by_prefix, None) or next(by_suffix, UNLISTED)
