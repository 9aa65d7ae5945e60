"""Engines in containers: their images, and the container of each process."""

import posixpath
import re
from collections.abc import Mapping
from typing import Final

from controller.engines.base import Engine, Launch, SpecError, model_reference, models_of_host
from schemas.image_names import repository_of, short_repository
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.docker import target_of
from schemas.wire import ContainerOrder

# Tags that the projects' own pages name; CUDA 12, which runs on drivers that CUDA 13 no longer does.
# vLLM: docs.vllm.ai, Using Docker. SGLang: docs.sglang.io, Installation: this is its last tag with CUDA 12.
# llama.cpp: docs/docker.md in its repository: `server-cuda` has CUDA 12, and each build a tag of its own.
# Hugging Face publishes no image with the requirements of `transformers serve`.
DEFAULT_IMAGES: Final[Mapping[str, str]] = {
    "vllm": "vllm/vllm-openai:v0.28.0-cu129",
    "sglang": "lmsysorg/sglang:v0.5.19-cu129",
    "llama-cpp": "ghcr.io/ggml-org/llama.cpp:server-cuda-b9660",
    "llama-cpp-cpu": "ghcr.io/ggml-org/llama.cpp:server-b9660",
}
_WITHOUT_GPUS: Final[Mapping[str, str]] = {"llama-cpp": "llama-cpp-cpu"}
# /dev/shm, through which the processes of one engine exchange tensors, also by NCCL. Docker's 64 MiB are too few. The
# pages of SGLang use 32 GiB for eight GPUs. Unused memory is not taken.
SHM_PER_GPU_MIB: Final = 4096
_SHARES_MEMORY: Final = frozenset({"vllm", "sglang", "custom"})  # the program of a command is unknown
# llama.cpp's images have the server in a folder that their PATH lacks. The other folders are NVIDIA's and Debian's.
_PATHS: Final = (
    "/app", "/usr/local/nvidia/bin", "/usr/local/cuda/bin",
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
)  # fmt: skip
_DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}$")


def has_default_image(engine: str) -> bool:
    return engine in DEFAULT_IMAGES


def check_container(spec: DeploymentSpec) -> None:
    """Raises SpecError for a spec with `runtime: docker` whose container cannot work."""
    named = spec.engine
    if named == "auto" and spec.image is not None and not spec.command:
        raise SpecError("image: has one engine; set engine, such as engine: vllm, or remove the image")
    if named != "auto" and not spec.command and spec.image is None and not has_default_image(named):
        raise SpecError(f"image: is required by engine {named} with runtime: docker; name one that has the program")
    read = model_reference(spec) if spec.model is not None and not spec.model.startswith("hf:") else None
    for source, written in spec.docker.volumes.items():
        if read is not None and posixpath.normpath(target_of(written)) == posixpath.normpath(read):
            raise SpecError(f"docker.volumes: {source} would hide the model, which is there at {read}; remove it")


def image_key(spec: DeploymentSpec, engine: str, gpus: int) -> str | None:
    """The entry of `DEFAULT_IMAGES` for a process; None if the spec has an image."""
    if spec.image is not None:
        return None
    return _WITHOUT_GPUS.get(engine, engine) if gpus == 0 else engine


def container_of(spec: DeploymentSpec, engine: Engine, launch: Launch) -> ContainerOrder | None:
    """The container of one process; None with `runtime: process`.

    The dispatch of the command may replace its image, by the controller's settings and by its digest.
    """
    if spec.runtime != "docker":
        return None
    key = image_key(spec, engine.name, launch.gpu_count)
    return ContainerOrder(
        image=spec.image or "" if key is None else DEFAULT_IMAGES[key],
        pull=spec.docker.pull,
        shm_size_mib=_shm_mib(spec, engine.name, launch.gpu_count),
        volumes=spec.docker.volumes,
        models=tuple(dict.fromkeys(models_of_host(spec, engine))),
        host_network=launch.workers > 1,  # ranks meet at their hosts' addresses
    )


def container_env(spec: DeploymentSpec, engine: str) -> dict[str, str]:
    """Variables that an engine needs only in a container."""
    if spec.runtime == "docker" and engine == "llama-cpp":
        return {"PATH": ":".join(_PATHS)}
    return {}


def pinned(image: str, digests: Mapping[str, str], *, of_settings: bool) -> str:
    """The image by the digest that its revision keeps of this repository, if there is one and the image has none.

    `digests`: by repository; under an empty name the digest of an unknown repository. `of_settings`: the image is an
    engine's default, so its repository may have changed.
    """
    digest = digests.get(short_repository(image))
    if not of_settings:  # a revision with its own image runs images of one repository only
        digest = digests.get("", digest)
    if digest is None or _DIGEST.search(image):
        return image
    return f"{repository_of(image)}@{digest}"


def _shm_mib(spec: DeploymentSpec, engine: str, gpus: int) -> int | None:
    """The size of /dev/shm; None: Docker's default."""
    if isinstance(spec.docker.shm_size, int):
        return spec.docker.shm_size
    return SHM_PER_GPU_MIB * gpus or None if engine in _SHARES_MEMORY else None
