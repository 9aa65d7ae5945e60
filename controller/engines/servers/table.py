"""The servers for models as a table: their platforms, and the metrics that show their work."""

from collections.abc import Mapping
from typing import Final

from controller.domain.placement import Compatibility
from controller.engines.base import Server, ServerMetrics
from schemas.engine_builds import LLAMA_CPP_ON_CPU


def _on_nvidia(engine: str, min_compute_capability: tuple[int, int]) -> Compatibility:
    return Compatibility(
        engine=engine,
        os=frozenset({"linux"}),
        arch=frozenset({"x86_64", "aarch64"}),
        vendors=frozenset({"nvidia"}),  # ROCm builds exist, but agents support only NVIDIA GPUs
        min_driver=(525,),  # the oldest driver that runs CUDA 12 programs
        min_compute_capability=min_compute_capability,
    )


SERVERS: Final[Mapping[str, Server]] = {
    "vllm": Server(
        _on_nvidia("vllm", (7, 0)),  # docs.vllm.ai, Installation, GPU: 7.0 or higher
        ServerMetrics(
            request_gauges=("vllm:num_requests_running", "vllm:num_requests_waiting"),
            queue_gauges=("vllm:num_requests_waiting",),
            cache_gauges=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the old name
            progress_counters=("vllm:generation_tokens_total", "vllm:prompt_tokens_total"),
        ),
    ),
    "sglang": Server(
        _on_nvidia("sglang", (7, 5)),  # docs.sglang.io, Install: Turing and newer
        ServerMetrics(
            request_gauges=("sglang:num_running_reqs", "sglang:num_queue_reqs"),
            queue_gauges=("sglang:num_queue_reqs",),
            cache_gauges=("sglang:token_usage",),
            progress_counters=("sglang:generation_tokens_total", "sglang:prompt_tokens_total"),
        ),
    ),
    "llama-cpp": Server(
        Compatibility(
            engine="llama-cpp",
            os=frozenset({"linux", "darwin"}),
            arch=frozenset({"x86_64", "aarch64"}),
            vendors=frozenset({"nvidia", "apple"}),
            without_gpu=LLAMA_CPP_ON_CPU,
        ),
        ServerMetrics(
            request_gauges=("llamacpp:requests_processing", "llamacpp:requests_deferred"),
            queue_gauges=("llamacpp:requests_deferred",),
            cache_gauges=("llamacpp:kv_cache_usage_ratio",),
            progress_counters=("llamacpp:n_decode_total", "llamacpp:prompt_tokens_total"),
        ),
    ),
    # Volta: PyTorch's CUDA 12 wheels have no kernels for older GPUs. Its metrics name no requests.
    "transformers": Server(_on_nvidia("transformers", (7, 0))),
}


def _all(gauges: str) -> tuple[str, ...]:
    return tuple(name for server in SERVERS.values() for name in getattr(server.metrics, gauges))


# A command may start any of them, or Text Generation Inference. Missing gauges count as 0.
ANY_METRICS: Final = ServerMetrics(
    request_gauges=(*_all("request_gauges"), "tgi_batch_current_size", "tgi_queue_size"),
    queue_gauges=(*_all("queue_gauges"), "tgi_queue_size"),
    cache_gauges=_all("cache_gauges"),
)
