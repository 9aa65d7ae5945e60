"""Why a worker is not in use: sentences, while programs keep the code."""

import json
import re

import pytest

from cli.objects.views import read_view
from cli.text.workers import worker_reason, worker_why
from schemas.host_reasons import WORKERS
from support.builders.api_objects import now_text, worker


def why(state: str = "ready", **status: object) -> str:
    return worker_why(read_view("WorkerView", worker("gpu-a1", state, **status)))


def condition(type_: str, status: str, reason: str, message: str = "") -> dict[str, str]:
    return {"type": type_, "status": status, "reason": reason, "message": message, "since": now_text()}


@pytest.mark.parametrize("code", sorted(WORKERS))
def test_each_code_is_a_sentence(code: str) -> None:
    text = why("unreachable", reason=code)
    assert " " in text
    assert "_" not in code or code not in text.split()
    assert not re.search(r"[a-z]_[a-z]", text.replace("`restart: never`", ""))


@pytest.mark.parametrize("state", ["joining", "unreachable", "lost", "cordoned", "draining", "drained"])
def test_each_state_out_of_use_has_a_sentence(state: str) -> None:
    assert why(state).endswith(".")


def test_a_worker_in_use_has_no_reason() -> None:
    assert why() == ""
    assert why(conditions=[condition("ContainersUsable", "false", "no_docker", "Docker is not installed")]) == ""


def test_the_message_of_the_condition_goes_first() -> None:
    trouble = condition("GpusHealthy", "false", "gpu_unhealthy", "GPU 3 fell off the bus")
    assert why(conditions=[trouble]) == "GPU 3 fell off the bus"
    assert why(conditions=[condition("GpusHealthy", "false", "some_new_code")]) == "some new code"


def test_the_code_is_in_wide_and_for_programs(gpuward, api) -> None:
    api.add(worker("gpu-a1", "unreachable", reason="silent"))
    plain, wide = gpuward("get", "workers").stdout, gpuward("get", "workers", "-o", "wide").stdout
    assert WORKERS["silent"].meaning in plain
    assert "silent" not in plain.split()
    assert "silent" in wide.split()
    raw = json.loads(gpuward("get", "worker", "gpu-a1", "-o", "json").stdout)
    assert raw["status"]["reason"] == "silent"
    assert read_view("WorkerView", raw).status.reason == worker_reason(read_view("WorkerView", raw)) == "silent"
