"""`top`, `report idle`, and the graphs of `describe`."""

import csv
import io
import json

import pytest
import yaml

from cli.printing.table import Table, table_lines
from cli.verbs.report import LEAVING, cost_table
from schemas.api.history import IdleReport
from schemas.api.view import from_plain
from support.builders.api_objects import deployment, gpu, instance, now_text, worker

GPU_A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
GPU_B = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
WATCHED = {"policy": "stop-idle", "policy_generation": 1, "action": "stop", "since": now_text(5)}


@pytest.fixture
def hello(api):
    found = deployment("hello", ready=1)
    low = {**WATCHED, "verdict": "busy", "reason": "busy", "low_since": now_text(240), "due_at": now_text(-360.9)}
    claims = [{"instance": "hello-1", "deployment": "hello", "memory_mib": 20480, "exclusive": False, "epoch": 1}]
    api.add(
        found,
        instance(found, 1, worker="gpu-1", gpus=[GPU_A], utilization=low),
        worker("gpu-1", gpus=2),
        gpu(GPU_A, "gpu-1", claims=claims, used_mib=10240, claimed_mib=20480, utilization=3.0),
        gpu(GPU_B, "gpu-1", 1),
    )
    api.series = {GPU_A: [100.0] * 30 + [0.0] * 20 + [None] * 10}
    return found


def line_of(text: str, part: str) -> str:
    return next(line for line in text.splitlines() if part in line)


@pytest.mark.usefixtures("hello")
def test_top_shows_memory_utilization_and_time_to_stop(gpuward):
    text = gpuward("top", "--once").stdout
    assert line_of(text, "STATE").split() == ["WORKER", "STATE", "GPUS", "INSTANCES", "CLAIMED", "SEEN"]
    assert "1 of 1 workers ready, 1 of 2 GPUs held, " in text.splitlines()[1]
    assert "mean utilization 3% (1 of 2 GPUs)" in text.splitlines()[1]
    row = line_of(text, "hello-1")
    assert row.split()[:4] == ["gpu-1", "gpu-1:0", "10GiB/20GiB/80GiB", "3%"]
    assert "█" * 15 + "▁" * 10 in row
    assert row.split()[-4:] == ["hello-1", "hello", "4m", "6m"]
    assert line_of(text, "-/8GiB/80GiB").split()[:2] == ["gpu-1", "gpu-1:1"]
    assert "more" not in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("verdict", "idle_for", "stops_in"),
    [
        ({"verdict": "idle"}, "11m", "idle"),
        ({"verdict": "idle", "action": "notify"}, "11m", "-"),  # the policy stops nothing
        ({"verdict": "idle", "dry_run": True}, "11m", "idle(dry-run)"),
        ({"verdict": "unknown", "reason": "no_telemetry"}, "-", "no_telemetry"),
        ({"verdict": "busy", "reason": "requests"}, "-", "-"),
    ],
)
@pytest.mark.usefixtures("hello")
def test_top_shows_why_no_stop_is_due(gpuward, api, verdict, idle_for, stops_in):
    low = {"low_since": now_text(700)} if verdict["verdict"] == "idle" else {}
    api.objects["instances"]["hello-1"]["status"]["utilization"] = {**WATCHED, **verdict, **low}
    row = line_of(gpuward("top", "-n").stdout, "hello-1").replace(" (dry run)", "(dry-run)")
    assert row.split()[-2:] == [idle_for, stops_in]


@pytest.mark.parametrize(("verdict", "colour"), [("busy", "32"), ("idle", "31"), ("unknown", "33")])
def test_the_columns_about_idle_time_have_the_colour_of_the_verdict(verdict, colour):
    rows = [["w", "chat-1", "4m", "6m"], ["w", "-", "", ""]]
    table = Table(["WORKER", "INSTANCE", "IDLE FOR", "STOPS IN"], rows, (), [verdict, ""])
    _, judged, free = table_lines(table, 80, colours=True)
    assert judged == f"w       chat-1    \x1b[{colour}m4m\x1b[0m        \x1b[{colour}m6m\x1b[0m"
    assert free == "w       -"


@pytest.mark.usefixtures("hello")
def test_top_of_one_worker_requests_only_that_worker(gpuward, api):
    api.add(worker("gpu-2"))
    assert "gpu-2" not in gpuward("top", "-n", "--worker", "gpu-1").stdout
    assert ("GET", "/api/v1/gpus", {"limit": "512", "worker": "gpu-1"}, None) in api.asked
    assert gpuward("top", "-n", "--worker", "nope").exit_code == 3


@pytest.mark.usefixtures("hello")
@pytest.mark.parametrize("words", [("instance", "hello-1"), ("deployment", "hello")])
def test_describe_draws_the_window_with_its_threshold(gpuward, api, words):
    api.watch = {"name": "stop-idle", "min_gpu_utilization": 50, "time_window": 600}
    text = gpuward("describe", *words).stdout
    assert "the last 10m; policy stop-idle acts below 50 % for 10m" in text
    assert "gpu-1:0 on gpu-1: highest 100%" in text
    assert "│" + "█" * 30 + "┄" * 20 + " " * 10 + "│ 50 %" in text


def test_describe_shows_the_last_action_of_a_policy_with_its_evidence(gpuward, api, hello):
    evidence = {
        "window_s": 600, "min_gpu_utilization": 10, "gpus_mode": "all", "requests_seen": 0,
        "gpus": [{"uuid": GPU_A, "worker": "gpu-9", "samples": 60, "coverage": 0.97, "series": [0, 5, None]}],
    }  # fmt: skip
    about = {"at": now_text(7200), "message": "stopped", "objects": [f"deployment:{hello['uid']}"]}
    later = {str(n): {**about, "id": n, "reason": "placed"} for n in range(90, 50, -1)}
    action = {**about, "id": 2, "reason": "policy_stop", "evidence": evidence}
    api.objects["events"] = {**later, "2": action}
    text = gpuward("describe", "deployment", "hello").stdout
    assert "Last action of a policy: policy_stop" in text
    assert "below 10 % for 10m, gpus: all, requests seen: 0" in text
    assert "gpu-1:0 on gpu-9: 60 samples, 97 % covered: highest 5%" in text
    assert "│▁▂ │" in text


REPORT = {
    "since": "2026-11-01T00:00:00Z",
    "until": "2026-11-08T00:00:00Z",
    "items": [
        {
            "deployment": "hello", "uid": f"{n}0000000-0000-0000-0000-000000000000", "deleted": n == 2, "policy": "p",
            "min_gpu_utilization": 10,
            "gpu_hours": {
                "claimed": 100.0, "used": 25.0, "wasted": 50.0, "unknown": 10.0, "freed": 3.25, "would_free": 40.0
            },
        }
        for n in (1, 2)
    ],
    "policies": [{"policy": "p", "actions": 4, "gpu_hours_freed": 6.5}],
    "total": {"claimed": 200.0, "used": 50.0, "wasted": 100.0, "unknown": 20.0, "freed": 6.5, "would_free": 80.0},
    "replayed": {"min_gpu_utilization": 30, "time_window": 600},
}  # fmt: skip
REPLAY = ("--min-gpu-utilization", "30", "--time-window", "10m")


def test_report_idle_as_a_table_with_its_total(gpuward, api):
    api.canned["idle"] = REPORT
    text = gpuward("report", "idle", "--since", "7d", *REPLAY).stdout
    asked = {"since": "604800s", "min_gpu_utilization": "30", "time_window": "600s"}
    assert api.asked[-1][2] == asked
    assert line_of(text, "DEPLOYMENT").endswith("WOULD FREE")
    assert line_of(text, "hello (20000000), deleted").split()[-1] == "40.00"
    total = ["TOTAL", "200", "50.00", "(25%)", "100", "(50%)", "20.00", "(10%)", "6.50", "80.00"]
    assert line_of(text, "TOTAL").split() == total
    assert line_of(text, "6.50").split()[0] in ("TOTAL", "p")
    assert "a policy of 30 % / 10m" in text


@pytest.mark.parametrize(("written", "asked"), [("14d", "1209600s"), ("400d", "34560000s"), ("90.5s", "90.5s")])
def test_report_idle_passes_the_duration_on(gpuward, api, written, asked):
    api.canned["idle"] = REPORT
    gpuward("report", "idle", "--since", written)
    assert api.asked[-1][2]["since"] == asked


def test_report_idle_without_replay_has_no_column_for_it(gpuward, api):
    total = {**REPORT["total"], "would_free": None}
    api.canned["idle"] = {**REPORT, "replayed": None, "total": total}
    text = gpuward("report", "idle").stdout
    assert "WOULD FREE" not in text
    assert line_of(text, "TOTAL").split()[-1] == "6.50"


def test_report_idle_for_programs(gpuward, api):
    api.canned["idle"] = REPORT
    assert json.loads(gpuward("report", "idle", "-o", "json").stdout) == REPORT
    assert yaml.safe_load(gpuward("report", "idle", "-o", "yaml").stdout)["total"] == REPORT["total"]
    rows = list(csv.DictReader(io.StringIO(gpuward("report", "idle", "-o", "csv").stdout)))
    assert [row["uid"][0] for row in rows] == ["1", "2"], "no total row for programs"
    assert (rows[0]["claimed_gpu_hours"], rows[1]["deleted"]) == ("100.0000", "true")


def test_a_replay_needs_both_flags(gpuward):
    result = gpuward("report", "idle", "--min-gpu-utilization", "30")
    assert result.exit_code == 2
    assert "--time-window" in result.stderr


def cost(*amounts):
    return dict(zip(("claimed", "used", "wasted", "unknown", "would_free"), amounts, strict=True))


PRICED = {
    **REPORT,
    "items": [
        {**item, "cost": one}
        for item, one in zip(
            REPORT["items"], (cost("250.00", "62.50", "125.00", "25.00", "100.00"), cost(*[None] * 5)), strict=True
        )
    ],
    "currency": "EUR",
    "total_cost": cost("250.00", "62.50", "125.00", "25.00", "100.00"),
    "unpriced": [{"model": "Tesla T4", "gpu_hours": 100.0}],
}


def test_report_idle_in_money(gpuward, api):
    api.canned["idle"] = PRICED
    text = gpuward("report", "idle", *REPLAY).stdout
    hours, money = text.split("COST IN")
    assert "EUR" not in hours
    assert line_of(money, "WOULD FREE").split()[:3] == ["EUR", "CLAIMED", "USED"]
    assert line_of(money, "hello (10000000)").split()[-5:] == ["250.00", "62.50", "125.00", "25.00", "100.00"]
    assert line_of(money, "hello (20000000)").split()[-5:] == ["-"] * 5, "unknown, and not 0"
    assert line_of(money, "TOTAL").split() == ["TOTAL", "250.00", "62.50", "125.00", "25.00", "100.00"]
    assert "Without a price: Tesla T4 (100 GPU hours)." in text


def test_report_idle_in_money_for_programs(gpuward, api):
    api.canned["idle"] = PRICED
    assert json.loads(gpuward("report", "idle", "-o", "json").stdout) == PRICED
    rows = list(csv.DictReader(io.StringIO(gpuward("report", "idle", "-o", "csv").stdout)))
    assert [(row["currency"], row["wasted_cost"], row["would_free_cost"]) for row in rows] == [
        ("EUR", "125.00", "100.00"),
        ("EUR", "", ""),
    ]
    api.canned["idle"] = REPORT
    rows = list(csv.DictReader(io.StringIO(gpuward("report", "idle", "-o", "csv").stdout)))
    assert (rows[0]["currency"], rows[0]["claimed_cost"]) == ("", "")
    assert "EUR" not in gpuward("report", "idle").stdout


def test_the_money_of_report_idle_fits_80_columns():
    amounts = dict.fromkeys(("claimed", "used", "wasted", "unknown", "would_free"), "1234567.89")
    items = [{**one, "deployment": "a-model-of-ours", "cost": amounts} for one in REPORT["items"]]
    report = from_plain(IdleReport, {**REPORT, "items": items, "currency": "EUR", "total_cost": amounts})
    lines = table_lines(Table(*cost_table(report), LEAVING), 80)
    assert max(map(len, lines)) <= 80
    assert "\n".join(lines).count("EUR") == 1
    assert lines[0].split()[-4:] == ["CLAIMED", "WASTED", "WOULD", "FREE"]
