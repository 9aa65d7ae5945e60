"""What workers run, and which image an instance runs, as lists and `describe` show them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cli.objects.kind import table_of
from cli.objects.kinds import WORKERS
from cli.text.details import describe
from cli.text.runtimes import runtime_line, runtimes
from schemas.api.envelopes import Condition
from schemas.api.instances import InstanceSpecView, InstanceStatus, InstanceView
from schemas.api.view import View
from schemas.api.workers import RuntimeView, WorkerSpecView, WorkerStatus, WorkerView

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NO_TOOLKIT = "no NVIDIA container toolkit on this host"


def docker(**fields: Any) -> RuntimeView:
    return RuntimeView(name="docker", **fields)


def described(view: View) -> str:
    return describe(view, instances=[], gpus=[], events=[], graphs=[], now=NOW)


@pytest.mark.parametrize(
    ("known", "cell", "line"),
    [
        (docker(usable=True, gpus=True, version="29.1"), "process,docker", "version 29.1, with GPUs"),
        (
            docker(usable=True, version="29.1", reason=NO_TOOLKIT),
            "process,docker(no GPUs)",
            f"version 29.1, without GPUs: {NO_TOOLKIT}",
        ),
        (docker(usable=True), "process,docker(no GPUs)", "of unknown version, without GPUs"),
        (docker(reason="it does not answer"), "process", "not usable: it does not answer"),
    ],
)
def test_a_docker_engine_in_a_cell_and_in_words(known: RuntimeView, cell: str, line: str) -> None:
    assert (runtimes([known]), runtime_line(known)) == (cell, line)


def worker(*known: RuntimeView, **status: Any) -> WorkerView:
    stands = WorkerStatus(phase="ready", state="ready", runtimes=list(known), **status)
    return WorkerView(name="w", uid="u", created_at=NOW, spec=WorkerSpecView(), status=stands)


def test_a_worker_for_processes_alone_lacks_nothing() -> None:
    lacks = Condition(
        type="ContainersUsable", status="false", reason="runtime_unsupported", message="no Docker", since=NOW
    )
    shown = worker(docker(reason="no Docker"), conditions=[lacks])
    titles, rows, *_ = table_of(WORKERS, [shown], NOW, wide=True)
    cells = dict(zip(titles, rows[0], strict=True))
    assert (cells["RUNTIMES"], cells["WHY"]) == ("process", "-")
    text = described(shown)
    assert "not usable: no Docker" in text
    assert "ContainersUsable" in text


def test_the_bytes_that_an_instance_runs_are_shown() -> None:
    digest = f"sha256:{'a' * 64}"
    runs = InstanceView(
        name="i", uid="i", generation=1, created_at=NOW,
        spec=InstanceSpecView(deployment="d", deployment_uid="u", revision=1, engine="vllm", runtime="docker"),
        status=InstanceStatus(phase="running", phase_since=NOW, image_digest=digest),
    )  # fmt: skip
    text = described(runs)
    assert digest in text
    assert "docker" in text
