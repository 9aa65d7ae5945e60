"""Deployments of real model servers on a running `gpuward up`: apply, ask, look."""

import json
import subprocess
import sys
from typing import Any

from openai import OpenAI

from support.processes.up_process import Up, clean_env

START_LIMIT = "150s"  # importing torch takes many seconds on a busy machine


def client_env(up: Up) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (up.data_dir / "client.env").read_text().splitlines())


def gpuward(up: Up, *words: str, manifest: dict[str, Any] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli", *words],
        env=clean_env() | client_env(up),
        input=json.dumps(manifest) if manifest else None,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr, up.text[-2000:])
    return done.stdout


def apply(up: Up, manifest: dict[str, Any]) -> dict[str, Any]:
    """Applies it and waits until it runs; returns its instance's status."""
    gpuward(up, "apply", "--wait", "--timeout", START_LIMIT, "-f", "-", manifest=manifest)
    (instance,) = json.loads(gpuward(up, "get", "instances", "-o", "json"))["items"]
    status: dict[str, Any] = instance["status"]
    return status


def openai_client(up: Up) -> OpenAI:
    env = client_env(up)
    return OpenAI(base_url=f"{env['GPUWARD_URL']}/v1", api_key=env["GPUWARD_API_KEY"], timeout=60, max_retries=0)
