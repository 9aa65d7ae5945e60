"""The cause of an engine's end, by its exit code and its last lines of log, for agent and controller.

The agent reports the most informative line as the message, from which the controller derives the reason code. Agents of
earlier versions report no line, which gives `crash`.
"""

import re
import signal
from enum import StrEnum
from typing import Final

KILLED_FOR_MEMORY: Final = "oom_killed: the kernel killed it, since memory of the host ran out"
_MOST: Final = 500  # characters of a line
_USAGE_LINES: Final = 6  # a usage error is at the end: one line, or a frame around it
_LISTED_LINES: Final = 150  # unless it lists its options below the error
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_FRAME: Final = re.compile(r"^[\s│|╭╰─╮╯]+|[\s│|─╮╯]+$")


class Cause(StrEnum):
    """A reason code of an instance."""

    OOM_KILLED = "oom_killed"
    GPU_OOM = "gpu_oom"
    PORT_TAKEN = "port_taken"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_GATED = "model_gated"
    NO_DISK_SPACE = "no_disk_space"
    ENGINE_USAGE = "engine_usage"
    CRASH = "crash"
    EXIT = "exit"  # code 0, or unknown
    IMAGE_NOT_FOUND = "image_not_found"
    IMAGE_PULL_FAILED = "image_pull_failed"
    RUNTIME_UNSUPPORTED = "runtime_unsupported"
    MODEL_COMMIT_GONE = "model_commit_gone"
    ENGINE_MISSING = "engine_missing"
    PATH_UNREADABLE = "path_unreadable"


# An agent starts its message with one of these if the process was never started.
_OF_A_START: Final = (
    Cause.IMAGE_NOT_FOUND, Cause.IMAGE_PULL_FAILED, Cause.RUNTIME_UNSUPPORTED, Cause.MODEL_COMMIT_GONE,
    Cause.ENGINE_MISSING, Cause.PATH_UNREADABLE, Cause.MODEL_NOT_FOUND, Cause.MODEL_GATED, Cause.NO_DISK_SPACE,
)  # fmt: skip

# Output of vLLM 0.11 and 0.33, SGLang 0.5, llama.cpp of 2026 and Transformers 5; the tests name the sources. The first
# match counts.
_TEXTS: Final = {
    Cause.GPU_OOM: re.compile(
        r"CUDA out of memory|CUDA error: out of memory|cudaMalloc failed: out of memory|OutOfMemoryError"
        r"|CUDA_ERROR_OUT_OF_MEMORY|failed to allocate CUDA\d* buffer|No available memory for the cache blocks"
        r"|is less than desired GPU memory utilization|larger than the available KV cache memory"
        r"|Not enough memory\. Please try to increase --mem-fraction-static"
    ),
    Cause.PORT_TAKEN: re.compile(
        r"address already in use|couldn't bind HTTP server socket|Port is already in use|port .{0,40} is not available",
        re.IGNORECASE,
    ),
    Cause.NO_DISK_SPACE: re.compile(r"No space left on device|Disk quota exceeded|Not enough free disk space"),
    Cause.MODEL_GATED: re.compile(r"GatedRepoError|Cannot access gated repo|gated repo\b"),
    Cause.MODEL_NOT_FOUND: re.compile(
        r"Repository Not Found|RepositoryNotFoundError"
        r"|is not a valid model identifier|Invalid repository ID or local directory|failed to open GGUF file"
        r"|does not appear to have a file named|Can't load the configuration of|RevisionNotFoundError"
    ),
}
_USAGE: Final = re.compile(
    r"^[\w./ -]{1,80}: error: |^error: (invalid argument|unknown argument|unrecognized|expected value for)"
    r"|error while handling argument|^(Error: )?No such option|^(Error: )?Invalid value for"
    r"|^(Error: )?Got unexpected extra argument|User-specified max_model_len"
)
_HEAD_OF_USAGE: Final = re.compile(r"^usage: ", re.IGNORECASE)
# Lines of vLLM's server about its engine core, and of SGLang's about its scheduler, whose errors are above.
_POINTER: Final = re.compile(
    r"See root cause above|See stack trace \(above\)|EngineDeadError|Received sigquit from a child process"
)
_POINTER_LINES: Final = 60  # of a server between such a line and its end
_EXCEPTION: Final = re.compile(r"^(\(\w+ pid=\d+\) ERROR [^\]]*\] )?([A-Za-z_][\w.]*(?:Error|Exception): .*)")

# A process ends itself by this signal, right after its last line. Other signals may come at any line.
_OWN_SIGNAL: Final = signal.SIGABRT
_OF_SIGNALS: Final = 128  # which shells, and so Docker, add to the signal that ended their program
_SIGNALS: Final = frozenset(map(int, signal.Signals))


def cause_line(tail: str, exit_code: int | None = None) -> str:
    """The line at the end of a log that explains the end of its process: the last with a known cause, else the last.

    If a signal killed the process (`exit_code` negative, or above 128), its last line has nothing to do with that, so
    only a known cause counts. Empty if no line explains the end.
    """
    lines = [shown for line in tail.splitlines() if (shown := _shown(line))]
    known = (line for line in reversed(lines) if any(text.search(line) for text in _TEXTS.values()))
    if killed_by(exit_code) not in (None, _OWN_SIGNAL):
        return next(known, None) or _root_cause(lines) or ""
    return _usage_error(lines) or next(known, None) or _root_cause(lines) or (lines[-1] if lines else "")


def killed_by(exit_code: int | None) -> int | None:
    """The number of the signal that ended a process; None if no signal did, or it is unknown."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - _OF_SIGNALS
    return number if number in _SIGNALS else None


def _usage_error(lines: list[str]) -> str | None:
    """Searches the last lines, and the lines right below the head of a usage text that ends the log."""
    heads = [at for at, line in enumerate(lines[-_LISTED_LINES:]) if _HEAD_OF_USAGE.search(line)]
    below = lines[-_LISTED_LINES:][heads[-1] :][:_USAGE_LINES] if heads else []
    return next((line for line in reversed([*below, *lines[-_USAGE_LINES:]]) if _USAGE.search(line)), None)


def _root_cause(lines: list[str]) -> str | None:
    """If one of the last lines refers to a cause above it: the last exception above, else that line."""
    first = max(len(lines) - _POINTER_LINES, 0)
    pointer = next((at for at in range(len(lines) - 1, first - 1, -1) if _POINTER.search(lines[at])), None)
    if pointer is None:
        return None
    matches = (_EXCEPTION.search(line) for line in reversed(lines[:pointer]) if not _POINTER.search(line))
    return next((match[2] for match in matches if match is not None), lines[pointer])


def cause_of_failed_start(message: str) -> Cause | None:
    """The cause of a failed start by its agent's message; None if the message has no known cause."""
    return next((cause for cause in _OF_A_START if message.startswith(f"{cause}:")), None)


def cause_of(message: str, exit_code: int | None) -> Cause:
    """The reason code for the end of a process without a stop command."""
    if message.startswith(f"{Cause.OOM_KILLED}:"):
        return Cause.OOM_KILLED
    if exit_code is None or exit_code == 0:
        return Cause.EXIT
    known = next((cause for cause, text in _TEXTS.items() if text.search(message)), None)
    if known is None and exit_code > 0 and _USAGE.search(message):
        return Cause.ENGINE_USAGE
    return known or Cause.CRASH


def _shown(line: str) -> str:
    plain = _FRAME.sub("", _COLOURS.sub("", line))
    return "".join(sign if sign.isprintable() else " " for sign in plain)[:_MOST].strip()
