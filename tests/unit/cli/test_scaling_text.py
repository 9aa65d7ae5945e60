"""How replicas follow requests, as text: the column, the notes of `ps`, the section of `describe`."""

from datetime import UTC, datetime, timedelta
from typing import Any

from cli.text.details import describe
from cli.text.scaling import notes, scale_cell
from cli.transport.paths import parse
from schemas.api.deployments import DeploymentView
from support.builders.api_objects import deployment

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
EVIDENCE = {
    "demand_mean": 20.5, "waiting": 3, "target": 8, "window_s": 10, "running": 2, "starting": 1,
    "engines": [{"queued": 2, "kv_use": 0.5}, {"queued": None, "kv_use": None}],
    "graph": [0, 4, None, 16], "graph_step_s": 10,
}  # fmt: skip


def view(phase: str = "running", *, fixed: bool = False, **scaling: Any) -> DeploymentView:
    raw = deployment("chat", phase, spec={"replicas": 2 if fixed else {"min": 0, "max": 6}})
    at = NOW - timedelta(minutes=2)
    shown = {
        "number": 4, "min": 0, "max": 6, "reason": "demand", "message": "4 wanted: much to do", "since": at, "at": at,
        "evidence": EVIDENCE,
    }  # fmt: skip
    raw["status"] |= {
        "scaling": None if fixed else shown | scaling,
        "intents": [{"source": "policy", "max_replicas": 2, "created_at": at}],
    }
    return parse(DeploymentView, raw)


def test_the_column_names_number_and_bounds() -> None:
    assert scale_cell(view()) == "4 of 0-6"
    assert scale_cell(view(dry_run=True)) == "4 of 0-6 (dry run)"
    assert scale_cell(view(fixed=True)) == "-"


def test_g42_ps_names_the_cap() -> None:
    (line,) = notes([view(capped_by="policy"), view(), view(fixed=True)])
    assert line.startswith("chat: 4 replicas wanted by demand, capped at 2 by its utilization policy")


def test_ps_names_what_sleeps() -> None:
    assert notes([view("asleep")]) == ["chat: asleep; a request wakes it"]


def test_ps_names_what_is_stopped_and_how_it_starts() -> None:
    at = NOW - timedelta(minutes=2)

    def stopped(*sources: str) -> str:
        raw = deployment("chat", "stopped", spec={"replicas": 1 if sources else 0})
        raw["status"]["intents"] = [{"source": one, "max_replicas": 0, "created_at": at} for one in sources]
        (line,) = notes([parse(DeploymentView, raw)])
        return line

    assert stopped("policy") == "chat: stopped by its utilization policy; gpuward start chat starts it"
    assert stopped("policy", "user").startswith("chat: stopped by its utilization policy and its user; gpuward start")
    assert stopped() == "chat: stopped, since its replicas are 0; gpuward scale chat 1 starts it"


def test_describe_shows_evidence_and_graph() -> None:
    one = view(capped_by="policy", awake_until=NOW + timedelta(hours=2))
    text = describe(one, instances=[], gpus=[], events=[], graphs=[], now=NOW)
    for part in (
        "4, between 0 and 6, for ",
        "demand: 4 wanted: much to do",
        "20.5 requests in flight and waiting as the mean of 10s, 3 waiting now, target 8 per replica",
        "2 running, 1 starting",
        "2 queued, cache 50 %, queue unknown, cache unknown",
        "│▁▃ █│ at most 16, 40s",
        "capped at 2 by its utilization policy",
        "Awake until",
    ):
        assert part in text, text
