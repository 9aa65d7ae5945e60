"""The text of `up` when it is ready: the places of its files, and three commands to try. Pure."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.up.example import EXAMPLE_MANIFEST, EXAMPLE_NAME
from schemas.printing import first_of


@dataclass(frozen=True, slots=True)
class UpInfo:
    """A running `up`. `program`: the call of this program. `key_is_valid`: False for a revoked key in `client_env`."""

    url: str
    data_dir: Path
    logs: Path
    client_env: Path
    workers: Sequence[str]
    program: Sequence[str]
    key_is_valid: bool = True


def ready_text(info: UpInfo, *, example: bool) -> str:
    key = "of an administrator; keep it secret"
    if not info.key_is_valid:
        reset = shlex.join([*info.program, "key", "reset", "--data-dir", str(info.data_dir)])
        key = f"revoked; for a new one run: {reset}"
    lines = [
        "",
        f"Gpuward is ready at {info.url} with {_workers(info.workers)}.",
        "",
        f"  dashboard {info.url}/ui/ (log in with the key)",
        f"  data      {info.data_dir}",
        f"  logs      {info.logs}",
        f"  key       {info.client_env} ({key})",
        "",
        "Try in another terminal, from this folder:",
        "",
        *(f"  {command}" for command in first_commands(info, example=example)),
        "",
        "Ctrl-C stops everything. Your deployments run again at the next start.",
    ]
    return "\n".join(lines)


def first_commands(info: UpInfo, *, example: bool) -> list[str]:
    """Three command lines for a POSIX shell. Each reads the key from its file."""
    file = shlex.quote(str(info.client_env))
    gpuward = f"env $(cat {file}) {shlex.join(info.program)}"
    body = json.dumps({"model": EXAMPLE_NAME, "messages": [{"role": "user", "content": "Hello!"}]})
    curl = (
        f". {file}; curl -s {info.url}/v1/chat/completions "
        '-H "Authorization: Bearer $GPUWARD_API_KEY" -H "Content-Type: application/json" '
        f"-d {shlex.quote(body)}"
    )
    if example:
        return [f"{gpuward} ps", curl, f"{gpuward} describe deployment {EXAMPLE_NAME}"]
    apply = f"echo {shlex.quote(json.dumps(EXAMPLE_MANIFEST))} | {gpuward} apply --wait -f -"
    return [apply, f"{gpuward} ps", curl]


def program_called(argv0: str, interpreter: str) -> list[str]:
    """The words that call this program again: as it was called, or with the interpreter if it is not a command."""
    if argv0.endswith(".py") or not argv0:
        return [interpreter, "-P", "-m", "cli"]
    return [argv0]


def _workers(names: Sequence[str]) -> str:
    shown = first_of(names, 4)
    return f"worker {shown}" if len(names) == 1 else f"{len(names)} workers ({shown})"
