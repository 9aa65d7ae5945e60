"""Why an engine ended: what real engines print, and which reason code follows."""

import pytest

from schemas.exit_causes import KILLED_FOR_MEMORY, cause_line, cause_of, cause_of_failed_start

# Each with the place that prints it.
PRINTED = [
    # torch/cuda/memory.py; below it vLLM's v1/engine/core_client.py says only that the engine core died
    ("""torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}""",
     1, "gpu_oom", "torch.OutOfMemoryError: "),
    # vllm/v1/worker/utils.py
    ("ValueError: Free memory on device cuda:0 (2.1/79.2 GiB) on startup is less than desired GPU memory utilization",
     1, "gpu_oom", "ValueError: Free memory"),
    # vllm/v1/core/kv_cache_planning.py
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", 1, "gpu_oom", ""),
    # sglang/srt/model_executor/pool_configurator.py
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", 1, "gpu_oom", "RuntimeError"),
    # ggml/src/ggml-cuda/ggml-cuda.cu, then tools/server/server-context.cpp
    ("""ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4165.00 MiB on device 0: cudaMalloc failed: out of memory
srv    load_model: failed to load model, '/m.gguf'""", 1, "gpu_oom", "ggml_backend_cuda"),
    # asyncio's create_server, under uvicorn
    ("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 18001): address already in use",
     1, "port_taken", "ERROR"),
    # socket.bind, as vLLM calls it in entrypoints/launchers/launcher.py
    ("OSError: [Errno 98] Address already in use", 1, "port_taken", ""),
    # tools/server/server-http.cpp
    ("srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18001", 1, "port_taken", ""),
    # sglang/srt/utils/network.py
    ("ValueError: port at 18001 is not available in 60 seconds.", 1, "port_taken", ""),
    # vllm/transformers_utils/config.py, within pydantic's frame
    ("""pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Invalid repository ID or local directory specified: '/m'
    For further information visit errors.pydantic.dev""", 1, "model_not_found", "Value error, Invalid repository"),
    # huggingface_hub/errors.py
    ("""huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: x)
Access to model a/b is restricted.""", 1, "model_gated", "huggingface_hub"),
    # transformers/utils/hub.py
    ("OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://h/a/b.", 1,
     "model_gated", "OSError: You are trying"),
    # any write of Python's, on a full disk and beyond a quota
    ("OSError: [Errno 28] No space left on device: '/cache/x'", 1, "no_disk_space", "OSError"),
    ("OSError: [Errno 122] Disk quota exceeded", 1, "no_disk_space", ""),
    # transformers/utils/hub.py
    ("OSError: a/b is not a local folder and is not a valid model identifier listed on the hub", 1,
     "model_not_found", ""),
    # ggml/src/gguf.cpp
    ("""gguf_init_from_file: failed to open GGUF file '/m.gguf' (No such file or directory)
srv    load_model: failed to load model, '/m.gguf'
srv operator(): cleaning up before exit...""", 1, "model_not_found", "gguf_init"),
    # argparse, as vLLM and SGLang call it
    ("""usage: vllm serve [model_tag] [options]
vllm serve: error: unrecognized arguments: --max-modle-len 9""", 2, "engine_usage", "vllm serve: error"),
    ("""usage: sglang serve [-h]
sglang serve: error: argument --dtype: invalid choice: 'x'""", 2, "engine_usage", "sglang serve: error"),
    # common/arg.cpp
    ("error: invalid argument: --max-modle-len", 1, "engine_usage", "error: invalid"),
    ("""error while handling argument "--ctx-size": stoi

usage:
-c, --ctx-size N""", 1, "engine_usage", "error while"),
    # typer, as Transformers calls it
    ("""Usage: transformers serve [OPTIONS]
Try 'transformers serve --help' for help.
╭─ Error ──╮
│ No such option: --dtyp Did you mean --dtype? │
╰──────────╯""", 2, "engine_usage", "No such option: --dtyp"),
    # typer without a terminal: transformers 5.19 and newer list all options below the error
    ("""Usage: transformers serve [OPTIONS] [FORCE_MODEL]
Try 'transformers serve --help' for help.

Error: No such option '--dtyp'.

Available options for 'transformers serve':
""" + "  --some-flag TEXT    What it does.\n" * 40 + """
Run 'transformers serve --help' for full details.""", 2, "engine_usage", "Error: No such option '--dtyp'."),
    # vllm/v1/engine/utils.py, when its engine core did not start: the cause is above, after the core's own prefix
    ("""(EngineCore pid=7) ERROR 11-23 01:51:56 [core.py:1510] AssertionError: Not enough allowed NUMA nodes
(EngineCore pid=7) ERROR 11-23 01:51:56 [core.py:1510]
Traceback (most recent call last):
  File "vllm/entrypoints/cli/main.py", line 120, in main
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}""",
     1, "crash", "AssertionError: Not enough allowed NUMA nodes"),
    # vllm/v1/engine/async_llm.py, when it died later: the server itself ends in order
    ("""(EngineCore pid=7) ERROR 11-23 01:54:23 [core.py:1512] KeyError: 'chatcmpl-23'
(APIServer pid=5) ERROR 11-23 01:54:23 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore \
encountered an issue. See stack trace (above) for the root cause.
INFO:     127.0.0.1:57690 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error
INFO:     Finished server process [5]""", 0, "exit", "KeyError: 'chatcmpl-23'"),
    ("Traceback (most recent call last):\n  File 'x.py', line 1\nKeyError: 'rope'", 1, "crash", "KeyError: 'rope'"),
    # A killed process did nothing wrong last: the signal came from elsewhere, or from the code that ran just then.
    ('INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK', -9, "crash", None),
    ("INFO 11-23 01:54:23 [loggers.py:1] Avg prompt throughput: 12.0 tokens/s", -15, "crash", None),
    ("INFO:     Application startup complete.", -11, "crash", None),
    ("INFO:     Application startup complete.", 137, "crash", None),
    ("tool: error: retrying", 143, "crash", None),
    # Its own words before it kills itself are one: torch and glibc abort, SGLang kills its whole tree.
    ("terminate called after throwing an instance of 'c10::Error'", -6, "crash", "terminate called"),
    ("ggml.c:1: GGML_ASSERT(n > 0) failed", 134, "crash", "ggml.c:1: GGML_ASSERT"),
    ("""torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
[2026-11-23 01:54:23] Received sigquit from a child process. It usually means the child failed.""",
     -9, "gpu_oom", "torch.OutOfMemoryError"),
    ("""[2026-11-23 01:54:23] Scheduler hit an exception: Traceback (most recent call last):
KeyError: 'rope'
[2026-11-23 01:54:23] Received sigquit from a child process. It usually means the child failed.""",
     -9, "crash", "KeyError: 'rope'"),
    ("", 1, "crash", ""),
    ("", -9, "crash", ""),
    ("Application shutdown complete.", 0, "exit", ""),
    ("whatever", None, "exit", ""),
]  # fmt: skip


@pytest.mark.parametrize(("printed", "code", "cause", "begins"), PRINTED)
def test_the_telling_line_and_its_cause(printed: str, code: int | None, cause: str, begins: str | None) -> None:
    line = cause_line("INFO: loading\n" + printed + "\n\n", code) if printed else ""
    assert line == "" if begins is None else line.startswith(begins)
    assert cause_of(line, code) == cause


@pytest.mark.parametrize(
    ("message", "code"),
    [(KILLED_FOR_MEMORY, -9), ("oom_killed: it needed more memory than its limit", 1)],  # the cgroup's count of a child
)
def test_what_the_agent_knows_of_a_kill_is_the_cause(message: str, code: int) -> None:
    assert cause_of(message, code) == "oom_killed"


def test_a_line_is_shown_plain_and_short() -> None:
    assert cause_line("\x1b[31mERROR: bad\x1b[0m\x07 thing\r\n\n") == "ERROR: bad  thing"
    assert len(cause_line("x" * 9000)) == 500
    assert cause_line(" \n\n") == ""


def test_an_early_word_of_usage_is_not_the_cause() -> None:
    begun = "tool: error: retrying\n" + "step\n" * 50 + "ValueError: bad weights"
    assert cause_line(begun) == "ValueError: bad weights"
    assert cause_of("ValueError: bad weights", 1) == "crash"
    begun = "Usage: tool [OPTIONS]\nError: No such option '--x'.\n" + "step\n" * 200 + "ValueError: bad weights"
    assert cause_line(begun) == "ValueError: bad weights"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("image_not_found: the registry has no image a/b:1", "image_not_found"),
        ("image_pull_failed: a/b:1: no progress for 300 s", "image_pull_failed"),
        ("runtime_unsupported: no NVIDIA container toolkit on this host", "runtime_unsupported"),
        ("model_gated: hf:a/b cannot be fetched: hf:a/b is gated: request access on the hub", "model_gated"),
        ("no_disk_space: hf:a/b needs 5 GiB more in /cache", "no_disk_space"),
        ("cannot start 'vllm': no such file", None),
        ("said image_not_found: in its log", None),
    ],
)
def test_the_agent_says_why_a_container_was_not_started(message: str, cause: str | None) -> None:
    assert cause_of_failed_start(message) == cause
