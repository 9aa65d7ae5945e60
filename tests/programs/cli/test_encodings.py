"""Names in characters that the locale lacks: they are shown escaped, and programs can read them."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from support.builders.api_objects import deployment, instance
from support.standins.api import KEY

TOLD = "模型 → zu groß \U0001f600"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("words", [("ps",), ("get", "deployments"), ("describe", "deployment", "chat"), ("top", "-n")])
def test_a_call_ends_well(api, encoding, words):
    chat = deployment("chat", "pending", message=TOLD)
    api.add(chat, instance(chat, 1, "pending", message=TOLD))
    shown = called(api, encoding, *words)
    if words[0] != "top":
        assert TOLD.encode(encoding, "backslashreplace") in shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_read_what_was_said(api, encoding, form, read):
    api.add(deployment("chat", "pending", message=TOLD))
    found = read(called(api, encoding, "get", "deployment", "chat", "-o", form).decode(encoding))
    assert found["status"]["message"] == TOLD


def called(api, encoding: str, *words: str) -> bytes:
    env = {"GPUWARD_URL": api.url, "GPUWARD_API_KEY": KEY, "HOME": "/nowhere", "PATH": os.environ["PATH"]}
    env["PYTHONIOENCODING"] = encoding
    done = subprocess.run([sys.executable, "-m", "cli", *words], env=env, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout
