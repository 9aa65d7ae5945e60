"""The rules for Prometheus: promtool takes them, and what they name is exported and documented."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_texts import assert_is_a_command, commands_of
from support.metric_names import SERVERS, kept_labels, metrics, unknown
from support.pages import DOCS, anchors

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES, TESTS = FOLDER / "gpuward-rules.yaml", FOLDER / "gpuward-rules-test.yaml"
LIMIT_S = 60
ALL = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in ALL if "alert" in rule]


def recorded() -> dict[str, set[str]]:
    """Labels of what the rules record: those that its expression keeps."""
    found = {}
    for rule in ALL:
        if "record" in rule:
            found[rule["record"]] = kept_labels(rule["expr"]) - SERVERS
    return found


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("verb", [("check", "rules", RULES.name), ("test", "rules", TESTS.name)], ids=" ".join)
def test_promtool_takes_them(verb: tuple[str, ...]) -> None:
    ran = subprocess.run(("promtool", *verb), cwd=FOLDER, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.get("alert") or rule["record"])
def test_each_metric_and_label_is_exported(rule: dict[str, Any]) -> None:
    assert unknown(rule["expr"], metrics() | recorded()) == set()


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("max by (phase) (gpuward_workerz)", {"gpuward_workerz", "phase"}),
        ('gpuward_workers{fase="lost"}', {"fase"}),
        ("gpuward_start_seconds", {"gpuward_start_seconds"}),  # a histogram has no series of its own name
        ('max by (phase) (gpuward_workers{phase="lost"})', set()),
    ],
)
def test_what_is_not_exported_would_be_found(expression: str, found: set[str]) -> None:
    assert unknown(expression, metrics()) == found


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_says_what_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    said = rule["annotations"]
    assert set(said) == {"summary", "description", "page"}
    assert all(said.values())
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    name, _, anchor = said["page"].partition("#")
    assert (DOCS / name).is_file()
    assert not anchor or anchor in anchors(DOCS / name)
    for command in re.findall(r"`(gpuward [^`]*)`", said["description"]):
        for words in commands_of(re.sub(r"\{\{.*?\}\}", "NAME", command)):
            assert_is_a_command(words, rule["alert"])


def test_each_alert_is_tested_to_fire_and_is_on_the_page() -> None:
    tested, page = TESTS.read_text(), (DOCS / "alerts.md").read_text(encoding="utf-8")
    for rule in ALERTS:
        assert f'alertname="{rule["alert"]}"' in tested
        assert f"`{rule['alert']}`" in page
    for record in recorded():
        assert f"`{record}`" in page
