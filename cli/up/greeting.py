"""What `up` says when all is ready: where things are, and three commands that work as printed. Pure."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.up.example import EXAMPLE_MANIFEST, EXAMPLE_NAME


@dataclass(frozen=True, slots=True)
class Place:
    """Where a running `up` has its things. `program` is how this program was called."""

    url: str
    data_dir: Path
    logs: Path
    client_env: Path
    workers: Sequence[str]
    program: Sequence[str]


def greeting(place: Place, *, example: bool) -> str:
    """The text that is printed when everything runs."""
    lines = [
        "",
        f"Gpuward is ready at {place.url} with {_workers(place.workers)}.",
        "",
        f"  data      {place.data_dir}",
        f"  logs      {place.logs}",
        f"  key       {place.client_env} (an administrator's; keep it to yourself)",
        "",
        "Try in another terminal, from this folder:",
        "",
        *(f"  {command}" for command in first_commands(place, example=example)),
        "",
        "Ctrl-C stops all of it; what you deployed comes back at the next start.",
    ]
    return "\n".join(lines)


def first_commands(place: Place, *, example: bool) -> list[str]:
    """Three lines for a POSIX shell, each complete in itself: they read the key from its file."""
    file = shlex.quote(str(place.client_env))
    gpuward = f"env $(cat {file}) {shlex.join(place.program)}"
    body = json.dumps({"model": EXAMPLE_NAME, "messages": [{"role": "user", "content": "Hello!"}]})
    curl = (
        f". {file}; curl -s {place.url}/v1/chat/completions "
        '-H "Authorization: Bearer $GPUWARD_API_KEY" -H "Content-Type: application/json" '
        f"-d {shlex.quote(body)}"
    )
    if example:
        return [f"{gpuward} ps", curl, f"{gpuward} describe deployment {EXAMPLE_NAME}"]
    apply = f"echo {shlex.quote(json.dumps(EXAMPLE_MANIFEST))} | {gpuward} apply --wait -f -"
    return [apply, f"{gpuward} ps", curl]


def program_called(argv0: str, interpreter: str) -> list[str]:
    """How to call this program again: as it was called, or through the interpreter where it is no command."""
    if argv0.endswith(".py") or not argv0:
        return [interpreter, "-P", "-m", "cli"]
    return [argv0]


def _workers(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")  # noqa: PLR2004 - shown
    return f"worker {shown}" if len(names) == 1 else f"{len(names)} workers ({shown})"
