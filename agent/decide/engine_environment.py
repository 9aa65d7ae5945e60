"""Variables of the agent's environment that engines get. Pure.

An agent's environment holds credentials: of its controller, of registries, of clouds. A list of forbidden names would
miss the next credential, so this lists the allowed names.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from schemas.engine_variables import OF_ANY

SETTING: Final = "GPUWARD_AGENT_ENGINE_ENVIRONMENT"
TOKENS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")  # of the hub, as its library reads them

_LISTED: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?|\*")
_OURS: Final = "GPUWARD_"
_NAMES: Final = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV",
    "XDG_CACHE_HOME", "CUDACXX",
    # certificate authorities, as OpenSSL, requests, curl, AWS, gRPC and Node.js read them
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "NODE_EXTRA_CA_CERTS",
    # the older names of HF_HUB_CACHE and HF_ASSETS_CACHE
    "HUGGINGFACE_HUB_CACHE", "HUGGINGFACE_ASSETS_CACHE", "TRANSFORMERS_CACHE",
})  # fmt: skip
_PROXIES: Final = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})  # in either case
_PREFIXES: Final = (
    "LC_", "CONDA_", "HF_",
    "CUDA_", "CUDNN_", "CUBLAS_", "CUBLASLT_", "NVCC_", "NVIDIA_", "NV_",  # NV_: versions, in NVIDIA's images
    "NCCL_", "OFI_NCCL_", "FI_", "UCX_",  # with the transports on which NCCL runs
    "ROCM_", "ROCR_", "HIP_", "HSA_", "AMD_", "RCCL_", "MIOPEN_", "ROCBLAS_", "HIPBLASLT_",
    "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "TRITON_",
    "OMP_", "GOMP_", "KMP_", "MKL_",  # MKL chooses the runtime of OpenMP
    "VLLM_", "SGLANG_", "SGL_", "FLASHINFER_", "LLAMA_", "GGML_",  # each is read by that server alone
)  # fmt: skip
_CREDENTIAL: Final = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|(?:^|_)(?:TOKEN|KEY|AUTH|PAT)(?:_(?:ID|FILE|PATH|DATA))?$"
)
_IS_A_SWITCH: Final = frozenset({"HF_HUB_DISABLE_IMPLICIT_TOKEN"})
_LONGEST_NAME: Final = 100
_MOST_NAMES: Final = 100


def check_listed(listed: Iterable[str]) -> None:
    """Raises ValueError if an entry is not a name or `PREFIX*`, or names variables of Gpuward."""
    for entry in listed:
        if not _LISTED.fullmatch(entry):
            raise ValueError(f"must be names of variables, or PREFIX*, separated by commas, got {entry!r}")
        if _is_ours(entry):
            raise ValueError(f"{entry}: no {_OURS}* variable is passed on to engines; remove it")


def passed_on(env: Mapping[str, str], listed: Iterable[str] = ()) -> dict[str, str]:
    """The variables that engines get of an agent's environment.

    `listed` are additions of the host's administrator: names, and `PREFIX*`. A credential passes only by its full name,
    and no `GPUWARD_*` passes.
    """
    listed = tuple(listed)
    return {name: value for name, value in env.items() if _passes(name, listed)}


def held_back(env: Mapping[str, str], listed: Iterable[str] = ()) -> tuple[str, ...]:
    """The sorted names that do not pass, without `GPUWARD_*`, which never do."""
    passed = passed_on(env, listed)
    return tuple(sorted(name for name in env.keys() - passed.keys() if not _is_ours(name)))


def format_names(names: Sequence[str]) -> str:
    """Names for a log line, bounded and in ASCII: a name may have any character."""
    words = ", ".join(ascii(name)[1:-1][:_LONGEST_NAME] for name in names[:_MOST_NAMES])
    return words + (f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else "")


def lacks_token(env: Mapping[str, str]) -> bool:
    return not any(env.get(name) for name in TOKENS)


def _passes(name: str, listed: tuple[str, ...]) -> bool:
    if _is_ours(name):
        return False
    if name in listed:
        return True
    if _CREDENTIAL.search(name.upper()) and name not in _IS_A_SWITCH:
        return False
    if name in _NAMES or name.upper() in _PROXIES or name in OF_ANY or name.startswith(_PREFIXES):
        return True
    return any(entry.endswith("*") and name.startswith(entry[:-1]) for entry in listed)


def _is_ours(name: str) -> bool:
    return name.upper().startswith(_OURS)  # settings are case-insensitive
