"""Why an engine ended by itself, as far as its exit code and its last lines say. Agent and controller share it. Pure.

The agent picks the line that tells most and reports it as the message. The controller derives the reason code from it,
so an agent of an earlier version, which reports no line, gives `crash`.
"""

import re
import signal
from enum import StrEnum
from typing import Final

KILLED_FOR_MEMORY: Final = "oom_killed: the kernel killed it, since memory of the host ran out"
_MOST: Final = 500  # characters of a line
_USAGE_LINES: Final = 6  # a usage error is what a program says last; one line or a frame around it
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


# An agent says these itself, at the start of its message: the process was never started.
_OF_A_START: Final = (
    Cause.IMAGE_NOT_FOUND,
    Cause.IMAGE_PULL_FAILED,
    Cause.RUNTIME_UNSUPPORTED,
    Cause.MODEL_COMMIT_GONE,
    Cause.ENGINE_MISSING,
    Cause.PATH_UNREADABLE,
    Cause.MODEL_NOT_FOUND,
    Cause.MODEL_GATED,
    Cause.NO_DISK_SPACE,
)


# What engines print, checked against vLLM 0.11 and 0.33, SGLang 0.5, llama.cpp of 2026, and Transformers 5. The tests
# name the source of each. The first that matches counts.
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
# What vLLM's server says of its engine core, and SGLang's of its scheduler, whose own words stand above.
_POINTER: Final = re.compile(
    r"See root cause above|See stack trace \(above\)|EngineDeadError|Received sigquit from a child process"
)
_POINTER_LINES: Final = 60  # what a server says between that and its end
_EXCEPTION: Final = re.compile(r"^(\(\w+ pid=\d+\) ERROR [^\]]*\] )?([A-Za-z_][\w.]*(?:Error|Exception): .*)")


# By it a process ends itself, right after its last words. Any other signal may hit it at any line.
_OWN_SIGNAL: Final = signal.SIGABRT
_OF_SIGNALS: Final = 128  # a shell, and so Docker, adds it to the signal by which its program ended
_SIGNALS: Final = frozenset(int(one) for one in signal.Signals)


def telling_line(tail: str, exit_code: int | None = None) -> str:
    """The line of a log's end that says why a process ended: the last of a known cause, else the last one.

    What a process logged last has nothing to do with a signal that killed it, so then only a known cause counts.

    Args:
        tail: the end of its log.
        exit_code: negative, or above 128: by which signal it ended.

    Returns:
        Empty if no line says it.
    """
    lines = [shown for line in tail.splitlines() if (shown := _shown(line))]
    known = (line for line in reversed(lines) if any(text.search(line) for text in _TEXTS.values()))
    if killed_by(exit_code) not in (None, _OWN_SIGNAL):
        return next(known, None) or _root_cause(lines) or ""
    return _usage_error(lines) or next(known, None) or _root_cause(lines) or (lines[-1] if lines else "")


def killed_by(exit_code: int | None) -> int | None:
    """The number of the signal that ended a process; None: none did, or it is unknown."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - _OF_SIGNALS
    return number if number in _SIGNALS else None


def _usage_error(lines: list[str]) -> str | None:
    """Among the last lines, or right below the head of a usage text that ends the log."""
    heads = [at for at, line in enumerate(lines[-_LISTED_LINES:]) if _HEAD_OF_USAGE.search(line)]
    below = lines[-_LISTED_LINES:][heads[-1] :][:_USAGE_LINES] if heads else []
    return next((line for line in reversed([*below, *lines[-_USAGE_LINES:]]) if _USAGE.search(line)), None)


def _root_cause(lines: list[str]) -> str | None:
    """Where one of the last lines points to a cause above it: the last exception above, else that line."""
    first = max(len(lines) - _POINTER_LINES, 0)
    pointer = next((at for at in range(len(lines) - 1, first - 1, -1) if _POINTER.search(lines[at])), None)
    if pointer is None:
        return None
    found = (_EXCEPTION.search(line) for line in reversed(lines[:pointer]) if not _POINTER.search(line))
    return next((one[2] for one in found if one is not None), lines[pointer])


def cause_of_failed_start(message: str) -> Cause | None:
    """Why a process or container could not be started, as its agent says; None: it says nothing that has a code."""
    return next((cause for cause in _OF_A_START if message.startswith(f"{cause}:")), None)


def cause_of(message: str, exit_code: int | None) -> Cause:
    """The reason code for the end of a process that was not told to stop."""
    if message.startswith(f"{Cause.OOM_KILLED}:"):
        return Cause.OOM_KILLED
    if exit_code is None or exit_code == 0:
        return Cause.EXIT
    found = next((cause for cause, text in _TEXTS.items() if text.search(message)), None)
    if found is None and exit_code > 0 and _USAGE.search(message):
        return Cause.ENGINE_USAGE
    return found or Cause.CRASH


def _shown(line: str) -> str:
    plain = _FRAME.sub("", _COLOURS.sub("", line))
    return "".join(sign if sign.isprintable() else " " for sign in plain)[:_MOST].strip()
